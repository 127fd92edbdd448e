//! Wall time, and the time of all processors.
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub wall: f64,
    /// Of all threads; wall time where the system does not say.
    pub cpu: f64,
}

impl Took {
    pub const MOST: Took = Took { wall: f64::INFINITY, cpu: f64::INFINITY };

    pub fn least(self, other: Took) -> Took {
        Took { wall: self.wall.min(other.wall), cpu: self.cpu.min(other.cpu) }
    }
    /// As two members of a JSON object.
    pub fn json(self, name: &str) -> String {
        format!("\"{name}_ms\": {:.3}, \"{name}_cpu_ms\": {:.3}", self.wall, self.cpu)
    }
}

/// Times a call.
pub fn time<E>(call: impl FnOnce() -> Result<(), E>) -> Result<Took, E> {
    let (start, before) = (Instant::now(), processors());
    call()?;
    let wall = start.elapsed().as_secs_f64() * 1e3;
    let cpu = before.and_then(|before| Some(processors()? - before)).unwrap_or(wall);
    Ok(Took { wall, cpu })
}

/// Milliseconds this process' living threads have run: Linux counts them.
fn processors() -> Option<f64> {
    let mut sum = 0.0;
    for thread in Path::new("/proc/self/task").read_dir().ok()? {
        let line = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        sum += line.split(' ').next()?.parse::<f64>().ok()? * 1e-6;
    }
    Some(sum)
}

/// Starts this program anew without caches of compiled shaders, the driver's and ours, unless it runs without.
pub fn without_caches() {
    const MESA: &str = "MESA_SHADER_CACHE_DISABLE";
    if std::env::var_os(MESA).is_some() {
        return;
    }
    let program = std::env::current_exe().expect("a program has a path");
    let status = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(MESA, "true")
        .env("PALLAS_CACHE_DIR", "off")
        .status();
    std::process::exit(status.expect("it starts").code().unwrap_or(1));
}
