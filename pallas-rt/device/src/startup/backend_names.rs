//! Names of devices, as `PALLAS_DEVICE` and [`StartupConfig::backend`](super::StartupConfig::backend) have them.

/// The names of devices, as messages list them.
pub const DEVICE_NAMES: &str = "best, cpu, gpu, gpu:N (N from 0), gl, gl:N, interpret";

/// Parses a device name to the kind of device and its index; `None` if it is not valid.
pub fn parse_device_name(name: &str) -> Option<(&str, usize)> {
    match (name, name.split_once(':').unwrap_or((name, "0"))) {
        ("best" | "cpu" | "interpret", _) => Some((name, 0)),
        (_, (kind @ ("gpu" | "gl"), index)) => Some((kind, index.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::parse_device_name;

    #[test]
    fn names_of_devices() {
        let named = ["best", "cpu", "gpu", "gpu:3", "gl", "gl:1", "interpret"].map(parse_device_name);
        let expected = [("best", 0), ("cpu", 0), ("gpu", 0), ("gpu", 3), ("gl", 0), ("gl", 1), ("interpret", 0)];
        assert_eq!(named, expected.map(Some));
        for wrong in ["", "nonsense", "GPU", "gpu:", "gpu:-1", "gpu:x", "cpu:0", "gl:", "vulkan:0", "best:0"] {
            assert_eq!(parse_device_name(wrong), None, "{wrong}");
        }
    }
}
