//! Secrets in anything we write: found by the variable's name, or by a password inside an address.

/// Parts of names that hold secrets. Compared in upper case, as whole words between underscores where
/// the word is short enough to occur inside harmless ones (`KEY` in `MONKEY_COUNT`).
const PARTS: &[&str] = &["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "APIKEY", "PRIVATE_KEY", "COOKIE"];
const WORDS: &[&str] = &["KEY", "PASS", "PWD", "AUTH", "DSN", "SK", "AK"];

/// What a secret is replaced by.
pub const MASK: &str = "********";

/// Whether a variable of this name holds a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    if matches!(name.as_str(), "PWD" | "OLDPWD") {
        return false;
    }
    PARTS.iter().any(|part| name.contains(part)) || name.split('_').any(|word| WORDS.contains(&word))
}

/// The value as it may be written.
pub fn masked(name: &str, value: &str) -> String {
    if is_secret(name) && !value.is_empty() { MASK.to_owned() } else { without_password(value) }
}

/// `https://user:secret@host` with the password masked.
fn without_password(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(start) = rest.find("://") {
        let (head, tail) = rest.split_at(start + 3);
        text.push_str(head);
        let end = tail.find(['/', '?', '#', ',', ' ']).unwrap_or(tail.len());
        let authority = &tail[..end];
        match authority.rsplit_once('@').and_then(|(user, host)| Some((user.split_once(':')?.0, host))) {
            Some((user, host)) => {
                text.push_str(user);
                text.push(':');
                text.push_str(MASK);
                text.push('@');
                text.push_str(host);
            }
            None => text.push_str(authority),
        }
        rest = &tail[end..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for secret in [
            "HF_TOKEN",
            "WANDB_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "DB_PASSWORD",
            "github_token",
            "MYSQL_PWD",
            "BAIDU_AK",
            "NPM_AUTH",
            "SENTRY_DSN",
            "OPENAI_APIKEY",
        ] {
            assert!(is_secret(secret), "{secret}");
        }
        for harmless in ["PATH", "PWD", "OLDPWD", "PADDLE_TRAINER_ID", "MONKEY_COUNT", "AUTHOR", "KEYBOARD", "TASK_ID"]
        {
            assert!(!is_secret(harmless), "{harmless}");
        }
    }

    #[test]
    fn values() {
        assert_eq!(masked("HF_TOKEN", "abc"), MASK);
        assert_eq!(masked("HF_TOKEN", ""), "");
        assert_eq!(masked("X", "http://li:pw@proxy:80/a"), "http://li:********@proxy:80/a");
        assert_eq!(masked("X", "http://proxy:80/a@b:c"), "http://proxy:80/a@b:c");
        assert_eq!(masked("X", "a=redis://:pw@h,b=redis://u:p@h2"), "a=redis://:********@h,b=redis://u:********@h2");
    }
}
