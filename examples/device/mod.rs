//! Choice of the device of an example: `--device cpu|gpu|interpret`, else as `PALLAS_DEVICE` says, else on the best
//! device there is.
use pallas_rt::{Client, Error, Result};

/// The client an example runs on, as its arguments say.
///
/// # Errors
/// [`Error::Value`] for another name, [`Error::NoDevice`] if there is no such device.
pub fn client() -> Result<Client> {
    let args: Vec<String> = std::env::args().collect();
    let Some(at) = args.iter().position(|a| a == "--device") else { return Client::from_env() };
    match args.get(at + 1).map(String::as_str) {
        None => Err(Error::Value { message: "--device: expected cpu, gpu or interpret after it".into() }),
        Some("cpu") => Ok(Client::cpu()),
        Some("interpret") => Ok(Client::interpreter()),
        Some("gpu") => Client::gpu(0),
        Some(other) => Err(Error::Value { message: format!("--device {other}: expected cpu, gpu or interpret") }),
    }
}
