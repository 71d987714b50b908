//! The `umiak` binary. Everything is in the library, so that tests and generators can reach it.

fn main() -> std::process::ExitCode {
    umiak::cli::main()
}
