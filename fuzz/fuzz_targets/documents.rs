//! Reads arbitrary bytes as a document of any format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umiak_fuzz::read_document;

fuzz_target!(|bytes: &[u8]| read_document(bytes));
