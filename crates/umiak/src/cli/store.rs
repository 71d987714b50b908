//! `umiak store`: a key-value store for torch ranks, alone in the foreground.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use umiak_core::diag::{Code, Diagnostic};
use umiak_sys::wait::{Signals, readable};

use crate::store::{StoreNews, Stores, bind};
use crate::views::Output;

use super::runs::{Done, Format, print_json, print_text, talk};

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
/// Torch's own default.
const PORT: u16 = 29500;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Address to listen on; all addresses of this host when omitted
    #[arg(long, value_name = "ADDR")]
    host: Option<IpAddr>,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    #[command(flatten)]
    format: Format,
}

/// What `umiak store --output json` prints when it listens.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListeningStore {
    v: u32,
    /// The address that it is bound to; `::` stands for all addresses.
    host: IpAddr,
    port: u16,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let signals = Signals::block(&[SIGINT, SIGTERM]).map_err(|error| Diagnostic::failed("wait for signals", &error))?;
    let listener = bind(arguments.host, arguments.port).map_err(|error| {
        let wanted = arguments.host.map_or_else(|| "all addresses".to_owned(), |host| host.to_string());
        Diagnostic::error(Code::R0020, format!("the store cannot listen on port {}", arguments.port))
            .row("address", wanted)
            .row("reason", error.to_string())
            .hint("choose another port with `--port`; `--port 0` takes a free one")
    })?;
    let address = listener.local_addr().map_err(|error| Diagnostic::failed("find the port of the store", &error))?;
    let stores = Stores::start().map_err(|error| Diagnostic::failed("start the store", &error))?;
    let store = stores.open();
    stores.listen(store, listener);
    match arguments.format.output {
        Output::Human => print_text(&format!("listening on {address}\n"))?,
        Output::Json => print_json(&ListeningStore { v: 1, host: address.ip(), port: address.port() })?,
        Output::Quiet => print_text(&format!("{}\n", address.port()))?,
    };
    loop {
        let waited = readable(&[signals.as_fd(), stores.as_fd()], None);
        waited.map_err(|error| Diagnostic::failed("wait for signals", &error))?;
        for news in stores.news() {
            if let StoreNews::Refused { client, why, .. } = news {
                talk(
                    &Diagnostic::notice(Code::R0021, format!("a client was refused: {why}"))
                        .row("client", client.peer.to_string()),
                );
            }
        }
        if let Some(signal) = signals.read().first() {
            stores.close(store);
            return Ok(ExitCode::from(128 + u8::try_from(*signal).unwrap_or(0)));
        }
    }
}
