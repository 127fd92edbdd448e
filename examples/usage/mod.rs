//! The arguments that all examples share: `--help`, and the refusal of options that an example does not have.
use std::process::exit;

/// Ends the process if `--help` is among its arguments, with the page of the example (the `//!` lines of its `source`),
/// or if an option is not one of these, with exit code 2.
pub fn read(source: &str, options: &[&str]) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match answer(source, options, &args) {
        None => {}
        Some(Ok(page)) => {
            print!("{page}");
            exit(0);
        }
        Some(Err(wrong)) => {
            eprintln!("{wrong}");
            exit(2);
        }
    }
}

/// The answer to these arguments if the example does not run: its page, or what is wrong with them.
pub fn answer(source: &str, options: &[&str], args: &[String]) -> Option<Result<String, String>> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        let lines = source.lines().map_while(|line| line.strip_prefix("//!"));
        return Some(Ok(lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()));
    }
    let unknown = args.iter().find(|arg| arg.starts_with("--") && !options.contains(&arg.as_str()))?;
    let takes = if options.is_empty() { "none".to_string() } else { options.join(", ") };
    Some(Err(format!("unknown option `{unknown}`; options of this example: {takes}; `--help` says what it does")))
}
