//! The generated pages, one module each. A page is text made from a table in umiak's own code.

mod cli;
mod codes;
mod differences;
mod engines;
mod environment;
mod exits;
mod job;
mod openpai;
mod paddleflow;
mod paddlerec;
mod states;

use crate::tree::Generated;

/// Every generated file.
pub(crate) fn all() -> Vec<Generated> {
    let page = |path, content| Generated { path, content };
    let schemas = umiak::cli::SCHEMAS.iter().map(|schema| page(schema.path, (schema.text)()));
    let pages = vec![
        page("docs/reference/job.md", job::page()),
        page("docs/reference/openpai.md", openpai::page()),
        page("docs/reference/paddleflow.md", paddleflow::page()),
        page("docs/reference/paddlerec.md", paddlerec::page()),
        page("docs/reference/cli.md", cli::page()),
        page("docs/reference/engines.md", engines::page()),
        page("docs/reference/error-codes.md", codes::page()),
        page("docs/reference/exit-codes.md", exits::page()),
        page("docs/reference/environment.md", environment::page()),
        page("docs/reference/differences.md", differences::page()),
        page("docs/design/attempt-states.md", states::page()),
        page("docs/man/umiak.1", man(None)),
        page("docs/man/umiak-launch.1", man(Some("launch"))),
        page("docs/man/umiak-torchrun.1", man(Some("torchrun"))),
        page("docs/man/umiak-run.1", man(Some("run"))),
        page("docs/man/umiak-submit.1", man(Some("submit"))),
        page("docs/man/umiak-plan.1", man(Some("plan"))),
        page("docs/man/umiak-lint.1", man(Some("lint"))),
        page("docs/man/umiak-convert.1", man(Some("convert"))),
        page("docs/man/umiak-stop.1", man(Some("stop"))),
        page("docs/man/umiak-resume.1", man(Some("resume"))),
        page("docs/man/umiak-retry.1", man(Some("retry"))),
        page("docs/man/umiak-ls.1", man(Some("ls"))),
        page("docs/man/umiak-show.1", man(Some("show"))),
        page("docs/man/umiak-logs.1", man(Some("logs"))),
        page("docs/man/umiak-events.1", man(Some("events"))),
        page("docs/man/umiak-stacks.1", man(Some("stacks"))),
        page("docs/man/umiak-wait.1", man(Some("wait"))),
        page("docs/man/umiak-rm.1", man(Some("rm"))),
        page("docs/man/umiak-gc.1", man(Some("gc"))),
        page("docs/man/umiak-attach.1", man(Some("attach"))),
        page("docs/man/umiak-explain.1", man(Some("explain"))),
    ];
    schemas.chain(pages).collect()
}

/// The first line of every page.
const HEADER: &str = "<!-- Written by `cargo xtask generate`. Do not edit. -->\n\n";

fn man(command: Option<&str>) -> String {
    umiak::cli::man_page(command).expect("the command exists")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_deterministic_and_end_with_one_line_feed() {
        for (file, again) in all().into_iter().zip(all()) {
            assert_eq!(file.content, again.content, "{}", file.path);
            assert!(file.content.ends_with('\n') && !file.content.ends_with("\n\n"), "{}", file.path);
        }
    }
}
