//! The program `tollgate`: see [`tollgate_server::cli`].

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tollgate_server::cli::run()
}
