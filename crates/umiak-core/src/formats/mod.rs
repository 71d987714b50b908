//! Front doors: one module for each way people define a job. Text in, model and diagnostics out.

pub mod argparse;
pub mod launch;
pub mod native;
pub mod prefix;
pub mod settings;
pub mod yaml;
