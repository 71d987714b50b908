//! The secret that nodes share, and notices about it.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use umiak_core::diag::{Code, Diagnostic};
use umiak_core::formats::launch::{LaunchSpec, Token};
use umiak_core::model::Nodes;

/// Longest content of the file.
const MOST: u64 = 4096;
/// By the group or by others.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_READ: u32 = 0o044;
const ROOT: u32 = 0;

/// Reads `--token-file`, and adds notices about the token. One node needs none.
pub(super) fn complete(spec: &mut LaunchSpec) -> Result<(), Diagnostic> {
    if matches!(spec.request.nodes, Nodes::One) {
        return Ok(());
    }
    if let Some(path) = &spec.own.token_file {
        let (token, mode) = read(path)?;
        if mode & OTHERS_READ != 0 {
            let notice = Diagnostic::notice(Code::R0012, "other users of this host can read the token file");
            spec.notices.push(notice.hint(format!("`chmod 600 {}`", path.display())));
        }
        spec.own.token = Some(token);
    }
    if spec.own.token.as_ref().is_some_and(Token::is_short) {
        let notice = Diagnostic::notice(Code::R0012, "the token has fewer than 16 characters and can be guessed");
        spec.notices.push(notice.hint("make one with `head -c 24 /dev/urandom | base64`"));
    }
    Ok(())
}

/// The token and the permissions of its file.
fn read(path: &Path) -> Result<(Token, u32), Diagnostic> {
    let wrong = |reason: &str| {
        Diagnostic::error(Code::R0011, format!("the token file `{}` cannot be used", path.display()))
            .row("reason", reason)
    };
    let unreadable = |error: std::io::Error| wrong(&error.to_string());
    let file = umiak_sys::regular::open_to_read(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !is_trusted(metadata.uid(), umiak_sys::host::user_id()) {
        let copy = format!("copy it: `install -m 600 {} ~/.umiak-token`", path.display());
        return Err(wrong("it belongs to another user").hint(copy));
    }
    let mode = metadata.mode();
    if mode & OTHERS_WRITE != 0 {
        return Err(wrong("other users of this host can write it").hint(format!("`chmod 600 {}`", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MOST {
        return Err(wrong("it has more than 4096 bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not text"))?;
    let text = text.trim();
    if text.lines().count() > 1 {
        return Err(wrong("it has more than one line"));
    }
    let token = Token::new(text).ok_or_else(|| wrong("it is empty"))?;
    Ok((token, mode))
}

/// The owner of a file can change it, whatever its permissions.
fn is_trusted(owner: u32, user: u32) -> bool {
    owner == user || owner == ROOT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_user_and_root_are_trusted() {
        assert!(is_trusted(1000, 1000) && is_trusted(ROOT, 1000) && is_trusted(ROOT, ROOT));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, ROOT));
    }
}
