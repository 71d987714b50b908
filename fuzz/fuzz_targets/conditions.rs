//! Reads arbitrary text as a condition: what evaluates also passes the check of its form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umiak_core::pipeline::condition::{check, evaluate};

fuzz_target!(|text: &str| {
    let (form, value) = (check(text), evaluate(text));
    if let Err(error) = &form {
        assert!(error.at >= 1 && error.at <= text.chars().count() + 1);
    }
    assert!(form.is_ok() || value.is_err());
});
