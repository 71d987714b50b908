//! What is generated, one module for each page. A page is text made from a table of the product's own code.

mod cli;
mod codes;
mod differences;
mod environment;
mod exits;
mod states;

use crate::tree::Generated;

/// Every generated file.
pub(crate) fn all() -> Vec<Generated> {
    let page = |path, content| Generated { path, content };
    vec![
        page("schemas/facts.v1.json", umiak::cli::facts_schema()),
        page("docs/reference/cli.md", cli::page()),
        page("docs/reference/error-codes.md", codes::page()),
        page("docs/reference/exit-codes.md", exits::page()),
        page("docs/reference/environment.md", environment::page()),
        page("docs/reference/differences.md", differences::page()),
        page("docs/design/attempt-states.md", states::page()),
        page("docs/man/umiak.1", man(None)),
        page("docs/man/umiak-launch.1", man(Some("launch"))),
    ]
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
