//! Placeholder until the ranking lands.
use crate::facts::{Evidence, Subject, Verdict};
use crate::model::Exit;
#[derive(Debug)]
pub struct End {
    pub subject: Subject,
    pub exit: Exit,
    pub ran: std::time::Duration,
    pub order: u64,
    pub by_us: bool,
    pub before_stop: bool,
    pub evidence: Option<Evidence>,
}
pub fn rank(_: Vec<End>) -> Verdict {
    Verdict { causes: vec![], victims: vec![] }
}
