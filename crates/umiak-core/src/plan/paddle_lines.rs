//! The lines of Paddle's launchers, for the pod log.

use crate::facts::{Outcome, Verdict};
use crate::formats::launch::LaunchSpec;

use super::{Inventory, Plan};

pub fn at_start(_spec: &LaunchSpec, _inventory: &Inventory, _plan: &Plan) -> Vec<String> { vec![] }
pub fn on_console(_spec: &LaunchSpec) -> Vec<String> { vec![] }
pub fn at_spawn(_spec: &LaunchSpec, _plan: &Plan) -> Vec<String> { vec![] }
pub fn at_failure(_spec: &LaunchSpec, _plan: &Plan, _v: &Verdict) -> Vec<String> { vec![] }
pub fn container_failed(_spec: &LaunchSpec, _plan: &Plan, _v: &Verdict) -> Option<String> { None }
pub fn at_end(_spec: &LaunchSpec, _o: Outcome, _c: u8) -> Vec<String> { vec![] }
