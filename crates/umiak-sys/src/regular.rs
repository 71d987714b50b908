//! Opens files that must be regular. Opening a named pipe waits until another process opens it too, and opening a device
//! can have effects: neither is what a path to a file means.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Opens a regular file, without waiting.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open_with(options, 0, path)
}

/// Opens a regular file for reading, without waiting.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().read(true), path)
}

/// Reads a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_to_read(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Like [`open`], with further flags of `open(2)`.
pub(crate) fn open_with(options: &mut OpenOptions, flags: i32, path: &Path) -> io::Result<File> {
    let opened = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags).open(path);
    let kind = match &opened {
        Ok(file) => file.metadata()?.file_type(),
        // A named pipe without a reader, a socket, a device without a driver.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => std::fs::metadata(path)?.file_type(),
        Err(_) => return opened,
    };
    if kind.is_file() { opened } else { Err(special(kind)) }
}

/// Fails if this is not a regular file.
pub(crate) fn check(found: &Metadata) -> io::Result<()> {
    if found.is_file() { Ok(()) } else { Err(special(found.file_type())) }
}

fn special(kind: FileType) -> io::Error {
    let kind = match kind {
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        kind if kind.is_dir() => "a directory",
        _ => "a special file",
    };
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a regular file"))
}
