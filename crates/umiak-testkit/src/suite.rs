//! A suite of tests that need a real binary and sometimes real components.
//!
//! Every test declares what it needs. Tests whose components are missing are reported as skipped; components named in
//! `UMIAK_E2E` must be present. The run ends with a table: component, version, tests run. A named component without a
//! test run is an error.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::components::{Component, required};
use crate::hostile;
use crate::kill;
use crate::net;
use crate::toy;

/// Tests, and what each needs.
#[derive(Debug, Default)]
pub struct Suite {
    tests: Vec<Test>,
}

struct Test {
    name: String,
    needs: Vec<Component>,
    run: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Test {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Test").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Suite {
    /// Adds a test; it fails by panicking.
    pub fn test(&mut self, name: &str, needs: &[Component], run: impl FnOnce() + Send + 'static) -> &mut Self {
        self.tests.push(Test { name: name.to_owned(), needs: needs.to_vec(), run: Box::new(run) });
        self
    }

    /// Runs the tests selected on the command line, or the toy trainer if the binary was started as that.
    pub fn main(self) -> ExitCode {
        if let Some(code) =
            toy::run_if_asked().or_else(kill::run_if_asked).or_else(net::run_if_asked).or_else(hostile::run_if_asked)
        {
            return ExitCode::from(code);
        }
        // SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP.
        toy::process::default_signals(&[1, 2, 3, 15, 20]);
        let arguments = Arguments::from_args();
        let versions: BTreeMap<Component, Option<String>> =
            Component::ALL.into_iter().map(|component| (component, component.version())).collect();
        let counts: Arc<BTreeMap<Component, AtomicUsize>> =
            Arc::new(Component::ALL.into_iter().map(|component| (component, AtomicUsize::new(0))).collect());
        let required = required();
        let mut skipped: Vec<(String, &'static str)> = Vec::new();
        let trials = self
            .tests
            .into_iter()
            .map(|test| {
                let absent: Vec<Component> =
                    test.needs.iter().copied().filter(|component| versions[component].is_none()).collect();
                let missing = absent.iter().copied().find(|component| required.contains(component.name()));
                if let (None, Some(first)) = (missing, absent.first()) {
                    skipped.push((test.name.clone(), first.name()));
                }
                let counts = counts.clone();
                let (needs, run) = (test.needs, test.run);
                Trial::test(test.name, move || {
                    if let Some(component) = missing {
                        return Err(Failed::from(format!("`{}` is required but missing", component.name())));
                    }
                    for component in needs {
                        counts[&component].fetch_add(1, Ordering::Relaxed);
                    }
                    std::panic::catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Failed::from(message(&*panic)))
                })
                .with_ignored_flag(missing.is_none() && !absent.is_empty())
            })
            .collect();
        let conclusion = libtest_mimic::run(&arguments, trials);
        if arguments.list {
            return ExitCode::SUCCESS;
        }
        let whole_suite = arguments.filter.is_none() && arguments.skip.is_empty();
        let mut red = conclusion.has_failed();
        let mut table = String::from("component      tests run  version\n");
        for (component, version) in &versions {
            let count = counts[component].load(Ordering::Relaxed);
            let version = version.as_deref().unwrap_or("absent");
            let _ = writeln!(table, "{:<13}  {count:>9}  {version}", component.name());
            if whole_suite && required.contains(component.name()) && count == 0 {
                let _ = writeln!(table, "error: `{}` is required, but none of its tests ran", component.name());
                red = true;
            }
        }
        for name in required.iter().filter(|name| Component::ALL.iter().all(|known| known.name() != name.as_str())) {
            let _ = writeln!(table, "error: `UMIAK_E2E` names `{name}`, which is unknown to this suite");
            red = true;
        }
        for (name, component) in skipped {
            let _ = writeln!(table, "skipped: {name} ({component} is missing)");
        }
        let _ = std::io::stdout().write_all(format!("{table}\n").as_bytes());
        if red { ExitCode::from(101) } else { ExitCode::SUCCESS }
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}
