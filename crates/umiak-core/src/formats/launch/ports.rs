//! The ports of the ranks.
//!
//! Several flags and variables of both generations can set them. The first one that is set decides:
//!
//! | generation | order |
//! |---|---|
//! | current | `PADDLE_START_PORT` or `--start_port`, `FLAGS_FIXED_PORT`, `FLAGS_START_PORT`, `PORT_RANGE` |
//! | legacy | `FLAGS_START_PORT`, `--start_port`, `FLAGS_FIXED_PORT`, the platform's rule, `PORT_RANGE` |
//!
//! The default of `--start_port` in Paddle (6070) is not used here: ports are fixed only on request.

use super::arguments::{Arguments, Source};
use super::environment::{Environment, bad_number};
use crate::diag::{Code, Diagnostic};
use crate::formats::argparse;
use crate::model::{Generation, PortRequest};

/// `platform` is the request of PaddleCloud's variables, if they are set.
pub(super) fn request(
    arguments: &Arguments,
    generation: Generation,
    env: &Environment,
    platform: Option<PortRequest>,
) -> Result<PortRequest, Diagnostic> {
    let start = || flag(arguments);
    let flags_start = || variable(env, "FLAGS_START_PORT", 0);
    let flags_fixed = || variable(env, "FLAGS_FIXED_PORT", arguments.int("rank").unwrap_or(0).max(0));
    let fixed = match generation {
        Generation::Current => [start()?, flags_fixed()?, flags_start()?],
        Generation::Legacy => [flags_start()?, start()?, flags_fixed()?],
    };
    if let Some(request) = fixed.into_iter().flatten().next().or(platform) {
        return Ok(request);
    }
    Ok(range(env)?.unwrap_or(PortRequest::Free))
}

/// 0 means "none" in Paddle.
fn flag(arguments: &Arguments) -> Result<Option<PortRequest>, Diagnostic> {
    let (Some(number), Some(source)) = (arguments.int("start_port"), arguments.source("start_port")) else {
        return Ok(None);
    };
    if number == 0 { Ok(None) } else { fixed(number, source).map(Some) }
}

/// In Paddle the node's rank is added to `FLAGS_FIXED_PORT`; its default of -1 is not, or a job on one node would
/// start one port too low.
fn variable(env: &Environment, name: &'static str, offset: i64) -> Result<Option<PortRequest>, Diagnostic> {
    let Some(text) = env.get(name) else { return Ok(None) };
    let number = argparse::int(text).ok_or_else(|| bad_number(name, env))?;
    fixed(number.saturating_add(offset), Source::Variable(name)).map(Some)
}

fn fixed(number: i64, source: Source) -> Result<PortRequest, Diagnostic> {
    match u16::try_from(number) {
        Ok(start) if start > 0 => Ok(PortRequest::Fixed { start, source: source.name().to_owned() }),
        _ => Err(Diagnostic::error(
            source.code(),
            format!("`{}` asks for port {number}, which is not in the range 1-65535", source.name()),
        )),
    }
}

fn range(env: &Environment) -> Result<Option<PortRequest>, Diagnostic> {
    const NAME: &str = "PORT_RANGE";
    let Some(text) = env.get(NAME) else { return Ok(None) };
    let port = |text: &str| argparse::int(text).and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
    let ends = text.split_once(':').and_then(|(low, high)| Some((port(low)?, port(high)?)));
    match ends {
        Some((low, high)) if low <= high => Ok(Some(PortRequest::Range { low, high, source: NAME.to_owned() })),
        _ => {
            Err(Diagnostic::error(Code::L0009, format!("`{NAME}` takes two ports such as `35100:64000`, not `{text}`"))
                .hint("write the lower port first, or unset the variable"))
        }
    }
}
