//! Writes the seeds: `cargo run --example seeds`.

use std::fs;
use std::io;

use umiak_core::machine::round::messages::{Refusal, Stop, ToAgent, Waiting, Why};
use umiak_core::wire::handshake::Unwanted;
use umiak_fuzz::{coordinator, exchange, messages, stream};

fn main() -> io::Result<()> {
    let write = |path: &str, how: u8, bytes: &[u8]| fs::write(format!("seeds/{path}"), [&[how], bytes].concat());
    fs::create_dir_all("seeds/handshake")?;
    fs::create_dir_all("seeds/frames")?;

    let valid = exchange();
    write("handshake/to-agent", 0, &valid.from_coordinator)?;
    write("handshake/to-agent-in-pieces", 2 * 5, &valid.from_coordinator)?;
    write("handshake/to-coordinator", 1, &valid.from_agent)?;
    write("handshake/to-coordinator-in-pieces", 2 * 5 + 1, &valid.from_agent)?;
    let mut refusal = Vec::new();
    let mut other = coordinator();
    other.refuse(Unwanted::Over, "at 12:10", &mut refusal);
    let _ = other.feed(&mut &valid.from_agent[..], &mut refusal);
    write("handshake/to-agent-over", 0, &refusal)?;
    let mut changed = valid.from_agent.clone();
    changed[6] = 2;
    write("handshake/to-coordinator-of-version-2", 1, &changed)?;
    changed = valid.from_agent.clone();
    changed[9] = b'x';
    write("handshake/to-coordinator-of-another-job", 1, &changed)?;

    let (bytes, _) = stream();
    write("frames/stream", 0, &bytes)?;
    write("frames/stream-in-pieces", 7, &bytes)?;
    for (number, message) in messages().iter().enumerate() {
        write(&format!("frames/from-agent-{number}.json"), 0, &serde_json::to_vec(message)?)?;
    }
    let waiting = Waiting { joined: 1, of: 2, missing: vec![] };
    let to_agent = [
        ToAgent::Welcome,
        ToAgent::Refused(Refusal::MixedRanks),
        ToAgent::Refused(Refusal::Full { nodes: 2 }),
        ToAgent::Stop(Stop { attempt: 1, why: Why::TimeUp { waiting } }),
    ];
    for (number, message) in to_agent.iter().enumerate() {
        write(&format!("frames/to-agent-{number}.json"), 0, &serde_json::to_vec(message)?)?;
    }
    Ok(())
}
