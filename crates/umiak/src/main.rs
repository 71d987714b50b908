//! The `umiak` binary. All code is in the library, where tests and generators can reach it.

fn main() -> std::process::ExitCode {
    umiak::cli::main()
}
