//! One request, until a member answers: over all members, again while they elect a leader, with a new session if needed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};
use umiak_core::wire::etcd::{Fault, Refusal, Remedy, Request, answer, request};

use super::error::{Answer, Trouble};
use super::member::Member;
use super::{Etcd, EtcdError, Token};

/// How often every member is asked if none can be reached. Elections take longer and end with the time of the call.
const ROUNDS: u32 = 4;
/// Before the second round; doubled for each that follows.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For an answer about a member's health, which takes etcd up to a second.
const HEALTH: Duration = Duration::from_secs(2);

/// An answer.
pub(super) struct Done<'e> {
    pub(super) value: Value,
    /// True if an earlier request of the same call may have been performed too.
    pub(super) maybe_earlier: bool,
    member: &'e Member,
}

impl Done<'_> {
    pub(super) fn read<T>(&self, read: fn(&Value) -> Result<T, Fault>) -> Result<T, EtcdError> {
        read(&self.value).map_err(|fault| EtcdError::of(vec![(self.member.name(), fault.into())], false))
    }

    pub(super) fn not_etcd(&self) -> EtcdError {
        EtcdError::of(vec![(self.member.name(), Trouble::NotEtcd("the answer contradicts itself".to_owned()))], false)
    }
}

impl Etcd {
    /// Makes a request. `maybe_earlier` becomes true when it may have been performed without an answer.
    pub(super) async fn call_noting(
        &self,
        request: &Request,
        key: &str,
        maybe_earlier: &mut bool,
    ) -> Result<Done<'_>, EtcdError> {
        let cluster = &*self.cluster;
        let deadline = Instant::now() + cluster.limits.call;
        let mut pause = FIRST_PAUSE;
        let mut answers: Vec<Option<Trouble>> = vec![None; cluster.members.len()];
        for round in 1.. {
            // Short at first: a request that was under way when the leader died is never answered. Longer then, for a
            // cluster that is slow.
            let limit = cluster.limits.request * round;
            for index in self.order() {
                let member = &cluster.members[index];
                let trouble = match self.ask(member, request, limit).await {
                    Ok(value) => {
                        cluster.preferred.store(index, Ordering::Relaxed);
                        return Ok(Done { value, maybe_earlier: *maybe_earlier, member });
                    }
                    Err(trouble) => trouble,
                };
                match trouble.remedy() {
                    Remedy::GiveUp | Remedy::Authenticate => return Err(self.last(member, trouble, key)),
                    Remedy::TryAgain { maybe_done } => *maybe_earlier |= maybe_done,
                }
                tracing::debug!(member = member.name(), request = request.path, %trouble, "etcd");
                answers[index] = Some(trouble);
                if Instant::now() >= deadline {
                    break;
                }
            }
            let elects = answers.iter().flatten().any(Trouble::is_leaderless);
            let is_lasting = answers.iter().flatten().all(Trouble::is_lasting);
            if (round >= ROUNDS && !elects) || is_lasting || Instant::now() + pause >= deadline {
                break;
            }
            // Clients that lost the same member do not come back together.
            sleep(pause.mul_f32(0.75 + fastrand::f32() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(self.failed(answers).await)
    }

    /// Indexes of the members, beginning with the one that answered last.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.cluster.members.len();
        let first = self.cluster.preferred.load(Ordering::Relaxed);
        (0..count).map(move |step| (first + step) % count)
    }

    /// Asks one member, in a session if there is a user. A session that has expired is renewed once.
    pub(super) async fn ask(&self, member: &Member, request: &Request, limit: Duration) -> Result<Value, Trouble> {
        let token = self.token(member).await?;
        match self.ask_as(member, request, token.as_deref(), limit).await {
            // The second: authentication has been enabled since.
            Err(Trouble::Etcd(Refusal::Token | Refusal::NoUser)) if self.cluster.user.is_some() => {
                self.forget(token.as_deref());
                let token = self.token(member).await?;
                self.ask_as(member, request, token.as_deref(), limit).await
            }
            result => result,
        }
    }

    async fn ask_as(
        &self,
        member: &Member,
        request: &Request,
        token: Option<&str>,
        limit: Duration,
    ) -> Result<Value, Trouble> {
        let (status, body) = member.post(request, token, limit).await?;
        let is_stream = request.path == "/v3/lease/keepalive";
        Ok(if is_stream { answer::read_line(status, &body)? } else { answer::read(status, &body)? })
    }

    /// The token of this user's session; none without a user, or if the cluster does not authenticate.
    pub(super) async fn token(&self, member: &Member) -> Result<Option<Arc<str>>, Trouble> {
        let Some(user) = &self.cluster.user else { return Ok(None) };
        let known = self.cluster.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Token::Known(token) => return Ok(Some(token)),
            Token::Needless => return Ok(None),
            Token::Unknown => {}
        }
        let request = request::authenticate(&user.name, &user.password);
        let (token, result) = match self.ask_as(member, &request, None, self.cluster.limits.request).await {
            Ok(value) => {
                let token: Arc<str> = answer::token(&value)?.into();
                (Token::Known(token.clone()), Some(token))
            }
            Err(Trouble::Etcd(Refusal::AuthenticationOff)) => (Token::Needless, None),
            Err(trouble) => return Err(trouble),
        };
        *self.cluster.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
        Ok(result)
    }

    /// Forgets a token, unless another task has renewed it.
    fn forget(&self, expired: Option<&str>) {
        let mut token = self.cluster.token.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = match &*token {
            Token::Known(known) => Some(&**known) == expired,
            Token::Needless | Token::Unknown => expired.is_none(),
        };
        if is_same {
            *token = Token::Unknown;
        }
    }

    pub(super) fn forget_session(&self) {
        *self.cluster.token.lock().unwrap_or_else(PoisonError::into_inner) = Token::Unknown;
    }

    /// The error for a final answer.
    pub(super) fn last(&self, member: &Member, trouble: Trouble, key: &str) -> EtcdError {
        let (member, key) = (member.name(), key.to_owned());
        match trouble {
            Trouble::Etcd(refusal) => {
                let user = self.cluster.user.as_ref().map(|user| user.name.clone());
                EtcdError::Refused { refusal, member, key, user }
            }
            Trouble::TooLong => EtcdError::TooLong { member, key },
            other => EtcdError::of(vec![(member, other)], false),
        }
    }

    /// The error for the last answers of all members.
    pub(super) async fn failed(&self, answers: Vec<Option<Trouble>>) -> EtcdError {
        let members = &self.cluster.members;
        let mut healthy = false;
        // One that is silent because it has no quorum still answers about its health; one that hangs does not.
        if !answers.iter().flatten().any(Trouble::is_leaderless) {
            for (member, answer) in members.iter().zip(&answers) {
                if matches!(answer, Some(Trouble::Silent(_))) && !healthy {
                    healthy = member.is_alive(HEALTH).await;
                }
            }
        }
        let answers = members.iter().zip(answers).filter_map(|(member, answer)| Some((member.name(), answer?)));
        EtcdError::of(answers.collect::<Vec<Answer>>(), healthy)
    }
}
