//! CubeK at the other end of a pipe: its crate, `benches/cubek`, is built only when asked for.
use crate::clock::Took;
use crate::{Case, HEAD, Peer, message};
use pallas_rt::Result;
use std::io::{BufRead, BufReader, Error, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The program at a path, or built now if the path is empty.
///
/// # Errors
/// Cargo fails.
pub fn program(path: &str) -> std::io::Result<PathBuf> {
    if !path.is_empty() {
        return Ok(path.into());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cubek");
    eprintln!("building {}: ten minutes on two processors", folder.display());
    let built = Command::new("cargo").args(["build", "--release"]).current_dir(&folder).status()?;
    if !built.success() {
        return Err(Error::other("it does not build"));
    }
    Ok(folder.join("target/release/cubek"))
}

/// A running program and its case.
pub struct CubeK {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl CubeK {
    /// Starts the program on a case.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(program: &Path, case: Case) -> std::io::Result<CubeK> {
        let mut command = Command::new(program);
        match case {
            Case::Matmul { n } => command.args(["matmul", &n.to_string()]),
            Case::Attention { heads, positions, causal } => {
                let mask = if causal { "causal" } else { "full" };
                command.args(["attention", &heads.to_string(), &positions.to_string(), &HEAD.to_string(), mask])
            }
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(|| Error::other("it has no output"))?);
        Ok(CubeK { child, answers })
    }
    fn ask(&mut self, what: &str) -> std::io::Result<Vec<f64>> {
        let mut to = self.child.stdin.as_ref().ok_or_else(|| Error::other("it has no input"))?;
        writeln!(to, "{what}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let numbers: std::result::Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| Error::other(format!("CubeK says: {line}")))
    }
}

impl Peer for CubeK {
    fn name(&self) -> String {
        "CubeK 0.3.1".into()
    }
    fn first(&mut self) -> Result<Took> {
        self.run()
    }
    fn run(&mut self) -> Result<Took> {
        match self.ask("run").map_err(|e| message(&e))?[..] {
            [wall, cpu] => Ok(Took { wall, cpu }),
            _ => Err(message(&"CubeK ended")),
        }
    }
    fn result(&mut self) -> Result<Vec<f32>> {
        let numbers = self.ask("result").map_err(|e| message(&e))?;
        Ok(numbers.into_iter().map(|x| x as f32).collect())
    }
}

impl Drop for CubeK {
    fn drop(&mut self) {
        // It ends when its input does; whether it has is nobody's concern.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
