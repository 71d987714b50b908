//! A submission to PaddleCloud: its files for display, and the submission itself.

use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::shown;

use super::run::CloudSubmission;
use super::runs::{Done, Format, print_json, print_text};
use super::{say, tell};
use crate::front::cloud::{Outcome, folder, perform};
use crate::views::Output;

/// What `--dry-run` and `umiak plan` print about a submission to PaddleCloud with `--output json`.
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
}

#[derive(Serialize, JsonSchema)]
struct PlannedFile {
    name: String,
    text: String,
}

/// Prints the files of the submission, without their secrets.
pub(super) fn show(submission: &CloudSubmission, format: Format) -> Done {
    let CloudSubmission { cloud, known, .. } = submission;
    let files = cloud.files.iter().map(|file| PlannedFile { name: file.name.to_owned(), text: known.text(&file.text) });
    let files: Vec<PlannedFile> = files.collect();
    let folder = folder(&cloud.name);
    match format.output {
        Output::Quiet => print_text(""),
        Output::Json => print_json(&CloudPlan {
            v: 1,
            engine: "paddlecloud",
            name: cloud.name.clone(),
            folder,
            files,
            copies: cloud.patterns.clone(),
        }),
        Output::Human => {
            let mut text =
                format!("{}/: {}, and copies of {}\n", shown(&folder), list(&files), cloud.patterns.join(" "));
            for file in &files {
                text.extend(["\n# ", &file.name, "\n", &file.text]);
            }
            print_text(&text)
        }
    }
}

fn list(files: &[PlannedFile]) -> String {
    files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Writes the files, and calls the client.
pub(super) fn submit(submission: &CloudSubmission) -> Done {
    tell(&submission.notices);
    let masked = |text: &str| submission.known.text(text);
    let performed = perform(&submission.cloud, &submission.config);
    let Outcome { folder, said } = performed.map_err(|error| error.rewritten(&masked))?;
    print_text(&masked(&said))?;
    say(&format!("submitted to PaddleCloud; `{}/job.sh` submits it again\n", shown(&folder)));
    Ok(ExitCode::SUCCESS)
}
