//! Secrets by the name of a variable, a flag, a header or a key.

/// Parts of the names of secrets, compared in upper case. Short ones, which occur inside harmless words (`KEY` in
/// `MONKEY_COUNT`), are matched only as whole words between underscores.
const PARTS: &[&str] = &[
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "PASSCODE",
    "CREDENTIAL",
    "APIKEY",
    "ACCESSKEY",
    "ACCOUNTKEY",
    "PRIVATEKEY",
    "PRIVATE_KEY",
    "SIGNINGKEY",
    "ENCRYPTIONKEY",
    "COOKIE",
    "AUTHORIZATION",
];
const WORDS: &[&str] = &[
    "KEY", "PASS", "PWD", "AUTH", "OAUTH", "OAUTH2", "BEARER", "DSN", "SK", "AK", "PAT", "SAS", "JWT", "CRED", "CREDS",
];
/// Words that name a secret without another word beside them. `key` and `auth` alone have other meanings.
const CLEAR_WORDS: &[&str] = &["PASS", "PWD", "BEARER", "JWT"];
/// Harmless words that end with `PASS`; others, as in `DBPASS`, name a password.
const NO_PASSWORDS: &[&str] = &["COMPASS", "ENCOMPASS", "BYPASS", "SURPASS", "TRESPASS", "OVERPASS", "UNDERPASS"];
/// Beside `TOKENS` they show that tokens are counted: `MAX_TOKENS`.
const COUNTS: &[&str] = &["MAX", "MIN", "NUM", "N", "NEW", "COUNT", "TOTAL", "PER", "BATCH", "LIMIT", "LENGTH", "LEN"];
/// In the arguments of a training script it often means a token of text (`--max_tokens`, `tokenizer.name`).
const TOKEN: &str = "TOKEN";

/// True if a variable of this name holds a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    if matches!(name.as_str(), "PWD" | "OLDPWD") || names_a_file(&name) {
        return false;
    }
    let is_counted = || name.split('_').any(|word| COUNTS.contains(&word));
    let is_token = |word: &str| match word {
        "TOKENS" => !is_counted(),
        word => word.contains(TOKEN) && !word.contains("TOKENI"),
    };
    let is_word = |word: &str| WORDS.contains(&word) || is_password(word) || is_token(word);
    PARTS.iter().any(|part| name.contains(part)) || name.split(['_', '-', '.']).any(is_word)
}

/// True for the name of a path, such as `TOKEN_FILE`, in capitals: what it leads to is a secret, and it is not.
fn names_a_file(name: &str) -> bool {
    let last = name.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    matches!(last, "FILE" | "PATH" | "DIR")
}

fn is_password(word: &str) -> bool {
    let is_other = ["JWT", "BEARER", "OAUTH"].iter().any(|end| word.ends_with(end));
    let is_directory = matches!(word, "PWD" | "OLDPWD");
    let is_pass = word.ends_with("PASS") || word.ends_with("PWD");
    is_other || (is_pass && !is_directory && !NO_PASSWORDS.contains(&word))
}

/// True for names of flags, headers and keys. Stricter than [`is_secret`] for tokens.
pub(super) fn names_a_secret(name: &str) -> bool {
    // The variable; `pwd=` and `Pwd=` are passwords.
    if matches!(name, "PWD" | "OLDPWD") {
        return false;
    }
    let name = name.to_ascii_uppercase();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    !names_a_file(&name) && words.any(|word| WORDS.contains(&word) || is_clear(word))
}

/// True for a word that names a secret wherever it is.
fn is_clear(word: &str) -> bool {
    let is_part = PARTS.iter().any(|part| word.contains(part));
    is_part || CLEAR_WORDS.contains(&word) || is_password(word) || word.ends_with(TOKEN)
}

/// True for names of secrets in running text: stricter than [`names_a_secret`] for words that mean other things alone.
pub fn clearly_names_a_secret(name: &str) -> bool {
    let is_directory = matches!(name, "PWD" | "OLDPWD");
    let name = name.to_ascii_uppercase();
    if is_directory || names_a_file(&name) {
        return false;
    }
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.iter().any(|word| is_clear(word)) || words.len() > 1 && words.iter().any(|word| WORDS.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for secret in [
            "MYJWT",
            "DBPWD",
            "MYBEARER",
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
            "SSH_PASSPHRASE",
            "GITHUB_PAT",
            "SSH_PRIVATEKEY",
            "JWT",
            "AUTHORIZATION",
            "PASSPHRASE",
            "DBPASS",
            "BEARER",
            "OAUTH",
            "GITLAB_PAT",
            "PRIVATEKEY",
            "ACCESSKEYID",
            "AZURE_STORAGE_SAS",
            "authToken",
            "dbPassword",
        ] {
            assert!(is_secret(secret), "{secret}");
            assert!(names_a_secret(secret), "{secret}");
        }
        for secret in ["API_TOKENS", "TOKENVALUE"] {
            assert!(is_secret(secret), "{secret}");
        }
        for harmless in [
            "PATH",
            "PWD",
            "OLDPWD",
            "PADDLE_TRAINER_ID",
            "MONKEY_COUNT",
            "AUTHOR",
            "KEYBOARD",
            "TASK_ID",
            "PATIENCE",
            "PYTHONPATH",
            "COMPAT",
            "COMPASS_HOME",
            "TOKENIZERS_PARALLELISM",
            "TOKENIZER_PATH",
            "HF_TOKEN_FILE",
            "SSH_KEY_PATH",
            "MAX_TOKENS",
            "MONKEY",
            "BYPASS",
            "SASS_PATH",
            "DISPATCH",
        ] {
            assert!(!is_secret(harmless), "{harmless}");
            assert!(!names_a_secret(harmless), "{harmless}");
        }
    }
}
