//! Who owns what, and what was seen to move: the lanes of the page, and the story of a worker that is gone.
//!
//! Pure: what Redis and Kafka say comes in, with the time, ms.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};

use super::words;
use crate::kafka::onlooker::Member;

/// A worker that has given no sign of life for so many of its heartbeats, and at least [`SILENT_AT_LEAST`], is silent.
const SILENT_HEARTBEATS: i64 = 3;
const SILENT_AT_LEAST: i64 = 3_000;
/// So long a worker that is gone, and what moved, is told.
const TOLD: i64 = 60_000;
/// So long a partition is said to have moved, if it has not caught up before.
const MOVED: i64 = 30_000;
/// So long at least it is said.
const MOVED_AT_LEAST: i64 = 8_000;
/// So long the verdict is about it after the last claim.
pub(super) const VERDICT: i64 = 10_000;
/// Most lines of what happened.
const MOST_LINES: usize = 8;
/// Signs of life kept, one a second.
const BEATS: usize = 30;

/// What Redis says of one claimed partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) partition: i32,
    pub(super) owner: String,
    pub(super) epoch: i64,
    /// The owner's last sign of life, ms, by this machine's clock.
    pub(super) seen: i64,
}

/// How a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Life {
    Up,
    Silent,
    Gone,
}

#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) life: Life,
    pub(super) seen: i64,
    pub(super) host: Option<String>,
    pub(super) partitions: BTreeSet<i32>,
    /// Of a worker that is gone: what it had, and who has it now.
    pub(super) lost: BTreeMap<i32, Option<String>>,
    gone_at: i64,
    beats: VecDeque<bool>,
    beats_at: i64,
    beaten: i64,
    member: Option<String>,
}

/// A partition that changed its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Move {
    pub(super) from: String,
    pub(super) epoch: i64,
    pub(super) at: i64,
}

/// One line of what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) at: i64,
    /// `dead`, `dropped` or `moved`.
    pub(super) kind: &'static str,
    pub(super) who: String,
    pub(super) text: String,
}

/// Everything seen of workers since somebody looks.
#[derive(Debug, Default)]
pub(super) struct Workers {
    heartbeat: i64,
    session_timeout: String,
    claims: BTreeMap<i32, Claim>,
    pub(super) workers: BTreeMap<String, Worker>,
    pub(super) moves: BTreeMap<i32, Move>,
    pub(super) story: VecDeque<Line>,
    members: Option<BTreeSet<String>>,
}

impl Workers {
    /// `heartbeat` in ms, by configuration; `session_timeout` as the story says it.
    pub(super) fn new(heartbeat: i64, session_timeout: String) -> Workers {
        Workers { heartbeat, session_timeout, ..Workers::default() }
    }

    fn silent_after(&self) -> i64 {
        (self.heartbeat * SILENT_HEARTBEATS).max(SILENT_AT_LEAST)
    }

    /// What Redis answered at `now`, and what Kafka said last.
    pub(super) fn observe(&mut self, now: i64, claims: &[Claim], members: Option<&[Member]>) {
        for claim in claims {
            self.claim(now, claim);
        }
        if let Some(members) = members {
            self.name_members(claims, members);
        }
        let silent_after = self.silent_after();
        let claimed: BTreeMap<&str, i64> = claims.iter().fold(BTreeMap::new(), |mut seen, claim| {
            let last = seen.entry(claim.owner.as_str()).or_insert(claim.seen);
            *last = (*last).max(claim.seen);
            seen
        });
        let mut died = Vec::new();
        for (name, worker) in &mut self.workers {
            worker.seen = worker.seen.max(claimed.get(name.as_str()).copied().unwrap_or_default());
            worker.partitions = claims.iter().filter(|c| c.owner == *name).map(|c| c.partition).collect();
            let silent = now - worker.seen > silent_after;
            let in_group =
                members.zip(worker.member.as_ref()).map(|(members, id)| members.iter().any(|m| m.id == *id));
            let dropped = in_group == Some(false) && silent;
            let stands_by = worker.partitions.is_empty() && in_group == Some(true);
            let replaced = worker.partitions.is_empty() && !stands_by;
            match worker.life {
                Life::Gone if stands_by || !silent && !replaced => worker.revive(),
                Life::Gone => {}
                _ if replaced || dropped => {
                    died.push((name.clone(), dropped));
                    worker.life = Life::Gone;
                    worker.gone_at = now;
                    worker.lost.extend(worker.partitions.iter().map(|partition| (*partition, None)));
                }
                _ => worker.life = if silent && !stands_by { Life::Silent } else { Life::Up },
            }
            worker.beat(now);
        }
        for (name, dropped) in died {
            self.tell_of_death(now, &name, dropped);
        }
        self.claim_lost(claims);
        self.workers.retain(|_, worker| worker.life != Life::Gone || now - worker.gone_at < TOLD);
        self.moves.retain(|_, moved| now - moved.at < MOVED);
        while self.story.front().is_some_and(|line| now - line.at > TOLD) || self.story.len() > MOST_LINES {
            self.story.pop_front();
        }
    }

    fn claim(&mut self, now: i64, claim: &Claim) {
        let before = self.claims.insert(claim.partition, claim.clone());
        self.workers.entry(claim.owner.clone()).or_insert_with(|| Worker::new(claim.seen));
        let Some(before) = before.filter(|before| before.owner != claim.owner) else { return };
        self.moves.insert(claim.partition, Move { from: before.owner.clone(), epoch: before.epoch, at: now });
        if let Some(worker) = self.workers.get_mut(&before.owner) {
            worker.lost.insert(claim.partition, None);
        }
        self.tell_of_claim(now, claim, &before);
    }

    /// A worker that takes over several partitions at once is one line.
    fn tell_of_claim(&mut self, now: i64, claim: &Claim, before: &Claim) {
        let last = self
            .story
            .back()
            .filter(|line| line.kind == "moved" && line.who == claim.owner && now - line.at < 2_000);
        let mut partitions: Vec<i32> =
            self.moves.iter().filter(|(_, moved)| moved.from == before.owner).map(|(p, _)| *p).collect();
        partitions.retain(|p| self.claims.get(p).is_some_and(|c| c.owner == claim.owner));
        let at = last.map_or(now, |line| line.at);
        if last.is_some() {
            self.story.pop_back();
        }
        let epochs = if partitions.len() == 1 {
            format!(", epoch {} → {}", before.epoch, claim.epoch)
        } else {
            String::new()
        };
        let text = format!("claims {} of {}{epochs}", words::list(&partitions), before.owner);
        self.story.push_back(Line { at, kind: "moved", who: claim.owner.clone(), text });
    }

    fn tell_of_death(&mut self, now: i64, name: &str, dropped: bool) {
        let Some(worker) = self.workers.get(name) else { return };
        // Its last sign of life comes before the claims that followed.
        let at = worker.seen;
        let line = Line { at, kind: "dead", who: name.to_owned(), text: "gave its last sign of life".into() };
        // Claims that were seen in the same moment followed from it.
        let place = self.story.iter().position(|line| line.at > at).unwrap_or(self.story.len());
        self.story.insert(place, line);
        if dropped {
            let text = format!("was dropped from the group, after session.timeout.ms = {}", self.session_timeout);
            let at = self.story.get(place + 1).map_or(now, |next| next.at.min(now));
            self.story.insert(place + 1, Line { at, kind: "dropped", who: name.to_owned(), text });
        }
    }

    fn claim_lost(&mut self, claims: &[Claim]) {
        for (name, worker) in &mut self.workers {
            for (partition, to) in &mut worker.lost {
                let claim = claims.iter().find(|claim| claim.partition == *partition);
                *to = claim.map(|claim| claim.owner.clone()).filter(|owner| owner != name);
            }
        }
    }

    /// The coordinator knows members by names of its own: a member is the worker that owns what it is assigned.
    fn name_members(&mut self, claims: &[Claim], members: &[Member]) {
        for member in members {
            let owners: BTreeSet<&str> = claims
                .iter()
                .filter(|claim| member.partitions.contains(&claim.partition))
                .map(|claim| claim.owner.as_str())
                .collect();
            let known = self.workers.values().any(|worker| worker.member.as_ref() == Some(&member.id));
            if let ([owner], false) = (owners.into_iter().collect::<Vec<_>>().as_slice(), known)
                && let Some(worker) = self.workers.get_mut(*owner)
                && worker.life == Life::Up
                && worker.member.is_none()
            {
                worker.member = Some(member.id.clone());
                worker.host = Some(member.host.clone());
            }
        }
        self.members = Some(members.iter().map(|member| member.id.clone()).collect());
    }

    /// Who is to get `partition` next, as the coordinator assigned it.
    pub(super) fn assignee(&self, partition: i32, members: Option<&[Member]>) -> Option<String> {
        let member = members?.iter().find(|member| member.partitions.contains(&partition))?;
        let worker = self.workers.iter().find(|(_, worker)| worker.member.as_ref() == Some(&member.id));
        Some(worker.map_or_else(|| format!("a worker on {}", member.host), |(name, _)| name.clone()))
    }

    /// Whether `partition` is to be shown as moved: until it caught up, but neither for a blink nor for ever.
    pub(super) fn moved(&self, now: i64, partition: i32, caught_up: bool) -> Option<&Move> {
        self.moves.get(&partition).filter(|moved| !caught_up || now - moved.at < MOVED_AT_LEAST)
    }

    /// Members of the group that own nothing.
    pub(super) fn standing_by(&self) -> usize {
        let named = self.workers.values().filter(|worker| worker.life != Life::Gone);
        self.members.as_ref().map_or(0, |members| members.len().saturating_sub(named.count()))
    }

    /// Some workers by how they are.
    pub(super) fn of(&self, life: Life) -> impl Iterator<Item = (&String, &Worker)> {
        self.workers.iter().filter(move |(_, worker)| worker.life == life)
    }

    /// The lanes, by name; `rate` is the ticks a second of a partition.
    pub(super) fn lanes(&self, now: i64, rate: impl Fn(i32) -> Option<f64>) -> Value {
        let lane = |worker: &Worker| {
            let rates: Vec<f64> = worker.partitions.iter().filter_map(|partition| rate(*partition)).collect();
            let mut lane = json!({
                "life": worker.life,
                "silent_for": (now - worker.seen).max(0) / 100 * 100,
                "partitions": worker.partitions,
                "beats": worker.beats.iter().map(|beat| if *beat { '1' } else { '0' }).collect::<String>(),
            });
            if let Some(host) = &worker.host {
                lane["host"] = host.as_str().into();
            }
            if worker.life == Life::Gone {
                let lost =
                    worker.lost.iter().map(|(p, to)| (p.to_string(), Value::from(to.as_deref().unwrap_or(""))));
                lane["lost"] = Value::Object(lost.collect());
                lane["partitions"] = json!([]);
            } else if rates.len() == worker.partitions.len() {
                lane["tps"] = json!(rates.iter().sum::<f64>().round());
            }
            lane
        };
        Value::Object(self.workers.iter().map(|(name, worker)| (name.clone(), lane(worker))).collect())
    }
}

impl Worker {
    fn new(seen: i64) -> Worker {
        Worker {
            life: Life::Up,
            seen,
            host: None,
            partitions: BTreeSet::new(),
            lost: BTreeMap::new(),
            gone_at: 0,
            beats: VecDeque::new(),
            beats_at: 0,
            beaten: 0,
            member: None,
        }
    }

    fn revive(&mut self) {
        self.life = Life::Up;
        self.lost.clear();
    }

    /// One mark a second: whether there was a sign of life in it.
    fn beat(&mut self, now: i64) {
        if now - self.beats_at < 1_000 {
            return;
        }
        // What is younger than two seconds counts: a heartbeat each second may fall just outside of one.
        self.beats.push_back(self.seen > self.beaten || now - self.seen < 2_000);
        (self.beats_at, self.beaten) = (now, self.seen);
        if self.beats.len() > BEATS {
            self.beats.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(partition: i32, owner: &str, epoch: i64, seen: i64) -> Claim {
        Claim { partition, owner: owner.into(), epoch, seen }
    }

    fn member(id: &str, partitions: &[i32]) -> Member {
        Member { id: id.into(), host: format!("10.0.0.{id}"), partitions: partitions.to_vec() }
    }

    fn workers() -> Workers {
        Workers::new(1_000, "6000".into())
    }

    #[test]
    fn a_worker_that_dies_is_silent_then_gone_and_its_partitions_are_seen_to_move() {
        let mut seen = workers();
        let members = [member("1", &[0, 1]), member("2", &[2, 3])];
        let before =
            |at| [claim(0, "a", 3, at), claim(1, "a", 3, at), claim(2, "b", 5, 1_000), claim(3, "b", 5, 1_000)];
        seen.observe(1_000, &before(1_000), Some(&members));
        assert_eq!(seen.of(Life::Up).count(), 2);
        seen.observe(5_000, &before(5_000), Some(&members));
        assert_eq!(seen.of(Life::Silent).map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b"]);
        let left = [member("1", &[0, 1, 2, 3])];
        seen.observe(7_000, &before(7_000), Some(&left));
        assert_eq!(seen.workers["b"].life, Life::Gone);
        assert_eq!(seen.assignee(2, Some(&left)).as_deref(), Some("a"));
        assert_eq!(seen.workers["b"].lost, BTreeMap::from([(2, None), (3, None)]));
        let after =
            [claim(0, "a", 3, 7_500), claim(1, "a", 3, 7_500), claim(2, "a", 6, 7_500), claim(3, "b", 5, 1_000)];
        seen.observe(7_500, &after, Some(&left));
        assert_eq!(seen.moves[&2], Move { from: "b".into(), epoch: 5, at: 7_500 });
        assert_eq!(seen.workers["b"].lost, BTreeMap::from([(2, Some("a".into())), (3, None)]));
        let all =
            [claim(0, "a", 3, 7_600), claim(1, "a", 3, 7_600), claim(2, "a", 6, 7_600), claim(3, "a", 6, 7_600)];
        seen.observe(7_600, &all, Some(&left));
        let story: Vec<_> =
            seen.story.iter().map(|line| (line.kind, line.who.as_str(), line.text.as_str())).collect();
        assert_eq!(
            story,
            [
                ("dead", "b", "gave its last sign of life"),
                ("dropped", "b", "was dropped from the group, after session.timeout.ms = 6000"),
                ("moved", "a", "claims 2 and 3 of b"),
            ]
        );
        seen.observe(7_600 + TOLD + 1, &all, Some(&left));
        assert!(!seen.workers.contains_key("b"), "it is told no longer");
    }

    #[test]
    fn a_worker_that_left_in_good_order_is_gone_once_others_have_what_it_had() {
        let mut seen = workers();
        seen.observe(1_000, &[claim(0, "a", 1, 1_000), claim(1, "b", 1, 1_000)], None);
        seen.observe(1_500, &[claim(0, "a", 1, 1_500), claim(1, "a", 2, 1_500)], None);
        assert_eq!(seen.workers["b"].life, Life::Gone);
        assert_eq!(seen.moved(1_600, 1, true).map(|moved| moved.from.as_str()), Some("b"));
        assert_eq!(seen.moved(1_500 + MOVED_AT_LEAST, 1, true), None);
        assert!(seen.moved(1_500 + MOVED_AT_LEAST, 1, false).is_some(), "it has not caught up");
    }

    #[test]
    fn a_worker_that_gave_all_it_had_to_another_and_stays_in_the_group_stands_by() {
        let mut seen = workers();
        seen.observe(1_000, &[claim(0, "a", 1, 1_000)], Some(&[member("1", &[0])]));
        let both = [member("1", &[]), member("2", &[0])];
        seen.observe(9_000, &[claim(0, "b", 2, 9_000)], Some(&both));
        assert_eq!(seen.of(Life::Up).count(), 2);
        seen.observe(10_000, &[claim(0, "b", 2, 10_000)], Some(&both[1..]));
        assert_eq!(seen.workers["a"].life, Life::Gone);
    }

    #[test]
    fn the_same_owner_with_a_new_epoch_is_no_move() {
        let mut seen = workers();
        seen.observe(1_000, &[claim(0, "a", 1, 1_000)], None);
        seen.observe(2_000, &[claim(0, "a", 2, 2_000)], None);
        assert!(seen.moves.is_empty() && seen.story.is_empty());
    }

    #[test]
    fn members_that_own_nothing_stand_by() {
        let mut seen = workers();
        let members = [member("1", &[0]), member("2", &[])];
        seen.observe(1_000, &[claim(0, "a", 1, 1_000)], Some(&members));
        assert_eq!(seen.standing_by(), 1);
    }
}
