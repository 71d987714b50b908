//! A submission to PaddleCloud: its files for display, and the submission itself.

use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::{Code, Diagnostic, shown};
use umiak_core::formats::paddlerec::cloud::{CloudFile, call};

use super::run::CloudSubmission;
use super::runs::{Done, Format, print_json, print_text};
use super::{say, tell};
use crate::front::cloud::{Outcome, folder, perform};
use crate::views::Output;

/// What a submission to PaddleCloud prints with `--output json`, as do `--dry-run` and `umiak plan`.
#[derive(Serialize, JsonSchema)]
pub(super) struct CloudPlan {
    v: u32,
    engine: &'static str,
    /// The name of the job on the platform.
    name: String,
    /// The directory of the submission: its name and the time.
    folder: String,
    /// The files that are made, without secrets.
    files: Vec<PlannedFile>,
    /// Patterns of the files that are copied.
    copies: Vec<String>,
    /// What the platform's client printed, of a submission.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct PlannedFile {
    name: String,
    text: String,
}

impl CloudPlan {
    fn new(CloudSubmission { cloud, known, .. }: &CloudSubmission, folder: String, answer: Option<String>) -> Self {
        let file = |file: &CloudFile| PlannedFile { name: file.name.to_owned(), text: known.text(&file.text) };
        Self {
            v: 1,
            engine: "paddlecloud",
            name: cloud.name.clone(),
            folder,
            files: cloud.files.iter().map(file).collect(),
            copies: cloud.patterns.clone(),
            answer,
        }
    }
}

/// Prints the files of the submission, without their secrets.
pub(super) fn show(submission: &CloudSubmission, is_graph: bool, format: Format) -> Done {
    if is_graph {
        return Err(meaningless("--graph"));
    }
    let plan = CloudPlan::new(submission, folder(&submission.cloud.name), None);
    match format.output {
        Output::Quiet => print_text(""),
        Output::Json => print_json(&plan),
        Output::Human => {
            let names: Vec<&str> = plan.files.iter().map(|file| file.name.as_str()).collect();
            let mut text =
                format!("{}/: {}, and copies of {}\n", shown(&plan.folder), names.join(", "), plan.copies.join(" "));
            for file in &plan.files {
                text.extend(["\n# ", &file.name, "\n", &file.text]);
            }
            print_text(&text)
        }
    }
}

/// The error about a flag that only runs have.
pub(super) fn meaningless(flag: &str) -> Diagnostic {
    let message = format!("`{flag}` has no meaning for a submission to PaddleCloud: the platform runs the job");
    Diagnostic::error(Code::L0001, message).hint("leave it out, or run the job on this host with `--engine local`")
}

/// Writes the files, and calls the client.
pub(super) fn submit(submission: &CloudSubmission, format: Format) -> Done {
    if format.output != Output::Quiet {
        tell(&submission.notices);
    }
    let masked = |text: &str| submission.known.text(text);
    let performed = perform(&submission.cloud, &submission.config);
    let Outcome { folder, said } = performed.map_err(|error| error.rewritten(&masked))?;
    match format.output {
        Output::Quiet => print_text(""),
        Output::Json => print_json(&CloudPlan::new(submission, folder, Some(masked(&said)))),
        Output::Human => {
            print_text(&masked(&said))?;
            say(&format!("submitted to PaddleCloud; `{}` submits it again\n", shown(&call(&folder))));
            Ok(ExitCode::SUCCESS)
        }
    }
}
