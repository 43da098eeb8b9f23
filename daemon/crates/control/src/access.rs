//! Access rules: the daemon's own user may connect, and the users named in `[listen]`.

use nix::sys::socket::UnixCredentials;
use nix::unistd::{Gid, Uid, User, getgrouplist};

/// The user id that represents all ids without a mapping in a namespace; also the id of the user `nobody`.
const OVERFLOW_UID: u32 = 65_534;

/// The rules of one daemon.
#[derive(Debug, Clone, Default)]
pub struct AccessRules {
    /// `listen.allow_uids`.
    pub allow_uids: Vec<u32>,
    /// The group id of `listen.group`.
    pub group: Option<u32>,
    /// Whether processes in other user or PID namespaces than the daemon's are refused.
    pub own_processes_only: bool,
}

impl AccessRules {
    /// Whether a peer with these kernel-checked credentials may connect.
    ///
    /// # Errors
    /// The reason and the remedy: a message for the peer.
    pub fn admit(&self, peer: &UnixCredentials) -> Result<(), String> {
        self.admit_to(Uid::effective().as_raw(), &own_uid_map(), peer)
    }

    /// As [`admit`](Self::admit), for a daemon of this user in a namespace with this map.
    fn admit_to(&self, own: u32, uid_map: &str, peer: &UnixCredentials) -> Result<(), String> {
        let uid = peer.uid();
        if uid == OVERFLOW_UID && (own != OVERFLOW_UID || !maps(uid_map, OVERFLOW_UID)) {
            return Err(format!(
                "user {OVERFLOW_UID} may not use this daemon of user {own}: the kernel shows every user by that number \
                 that the daemon's user namespace does not map, and `listen` cannot admit it; run both as one user, or \
                 the client as another user that `listen.allow_uids` names"
            ));
        }
        let is_admitted = uid == own
            || self.allow_uids.contains(&uid)
            || self.group.is_some_and(|group| peer.gid() == group || is_member(uid, group));
        if is_admitted {
            return Ok(());
        }
        Err(format!(
            "user {uid} may not use this daemon of user {own}; run both as one user, or name user {uid} in \
             `listen.allow_uids` or a group of it in `listen.group`, in the configuration of a daemon that `forebay serve` \
             or `forebay run` starts"
        ))
    }
}

/// Whether this user may be `nobody` or one without a mapping in the daemon's namespace.
pub(crate) fn may_be_unmapped(uid: u32) -> bool {
    uid == OVERFLOW_UID && !is_whole(&own_uid_map())
}

fn own_uid_map() -> String {
    std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default()
}

/// Whether a map has all users, like that of a machine's initial namespace.
fn is_whole(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether a namespace with this map (`/proc/PID/uid_map`: lines of first id inside, first id outside, count) has the
/// id.
fn maps(uid_map: &str, id: u32) -> bool {
    uid_map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) => {
                id.checked_sub(first).is_some_and(|offset| offset < count)
            }
            _ => false,
        }
    })
}

fn is_member(uid: u32, group: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else {
        return false;
    };
    let Ok(name) = std::ffi::CString::new(user.name) else {
        return false;
    };
    getgrouplist(&name, user.gid).is_ok_and(|groups| groups.contains(&Gid::from_raw(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32) -> UnixCredentials {
        // The rules do not depend on a process's id.
        let credentials = nix::libc::ucred { pid: 1, uid, gid };
        credentials.into()
    }

    #[test]
    fn only_the_own_user_and_named_users_may_connect() {
        let own = Uid::effective().as_raw();
        let rules = AccessRules::default();
        assert!(rules.admit(&peer(own, 77)).is_ok());
        let reason = rules.admit(&peer(own + 4321, 77)).unwrap_err();
        assert!(reason.contains(&format!("user {} may not", own + 4321)), "{reason}");
        assert!(reason.contains("listen.allow_uids"), "{reason}");
        let rules = AccessRules {
            allow_uids: vec![own + 4321, OVERFLOW_UID],
            group: Some(88),
            own_processes_only: false,
        };
        assert!(
            rules.admit(&peer(own + 4321, 77)).is_ok() && rules.admit(&peer(own + 1, 88)).is_ok()
        );
        assert!(rules.admit(&peer(own + 1, 77)).is_err());
        let reason = rules.admit_to(0, WHOLE, &peer(OVERFLOW_UID, 88)).unwrap_err();
        assert!(reason.contains("shows every user by that number"), "it may be anybody: {reason}");
    }

    const WHOLE: &str = "         0          0 4294967295\n";

    #[test]
    fn daemon_of_nobody_admits_its_user_if_its_namespace_has_it() {
        let rules = AccessRules::default();
        let nobody = peer(OVERFLOW_UID, OVERFLOW_UID);
        for map in [WHOLE, "0 100000 65536\n", "0 1000 1\n65534 165534 1\n"] {
            rules.admit_to(OVERFLOW_UID, map, &nobody).unwrap();
            assert!(rules.admit_to(OVERFLOW_UID, map, &peer(1000, 1000)).is_err());
        }
        assert!(is_whole(WHOLE) && !is_whole("0 100000 65536\n"));
        for map in ["", "0 100000 65534\n", "0 1000 1\n65535 165535 1\n", "nonsense"] {
            assert!(rules.admit_to(OVERFLOW_UID, map, &nobody).is_err(), "{map}");
        }
    }
}
