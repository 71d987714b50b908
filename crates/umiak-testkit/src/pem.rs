//! Keys and certificates for servers of tests, made by `openssl`.

use std::path::Path;
use std::process::{Command, Stdio};

/// Makes `NAME.key` and `NAME.pem` in a directory: signed by `AUTHORITY.pem`, or by itself.
pub(crate) fn make(directory: &Path, name: &str, subject: &str, authority: Option<&str>, extensions: &str) {
    std::fs::write(directory.join("extensions"), extensions).expect("the directory can be written");
    let (key, out) = (format!("{name}.key"), format!("{name}.pem"));
    openssl(directory, &["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", &key]);
    openssl(directory, &["req", "-new", "-key", &key, "-subj", subject, "-out", "request"]);
    let mut arguments = vec!["x509", "-req", "-in", "request", "-days", "2", "-extfile", "extensions", "-out", &out];
    let signer = authority.map(|ca| (format!("{ca}.pem"), format!("{ca}.key")));
    match &signer {
        Some((certificate, key)) => arguments.extend(["-CA", certificate, "-CAkey", key, "-CAcreateserial"]),
        None => arguments.extend(["-signkey", &key]),
    }
    openssl(directory, &arguments);
}

pub(crate) fn openssl(directory: &Path, arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).current_dir(directory).stdin(Stdio::null()).output();
    let output = output.expect("openssl starts");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
