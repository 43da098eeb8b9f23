//! Who may connect: the daemon's own user, and whom `[listen]` names.

use nix::sys::socket::UnixCredentials;
use nix::unistd::{Gid, Uid, User, getgrouplist};

/// The user id that stands for every id a namespace cannot express. It never matches.
const OVERFLOW_UID: u32 = 65_534;

/// The rules of one daemon.
#[derive(Debug, Clone, Default)]
pub struct AccessRules {
    /// `listen.allow_uids`.
    pub allow_uids: Vec<u32>,
    /// `listen.group`, by its number.
    pub group: Option<u32>,
    /// Whether processes in other user or PID namespaces than the daemon's are refused.
    pub own_processes_only: bool,
}

impl AccessRules {
    /// Whether a peer with these kernel-checked credentials may connect.
    pub fn admit(&self, peer: &UnixCredentials) -> bool {
        let uid = peer.uid();
        if uid == OVERFLOW_UID {
            return false;
        }
        uid == Uid::effective().as_raw()
            || self.allow_uids.contains(&uid)
            || self.group.is_some_and(|group| peer.gid() == group || is_member(uid, group))
    }
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
        // A process's number is no part of the rules.
        let credentials = nix::libc::ucred { pid: 1, uid, gid };
        credentials.into()
    }

    #[test]
    fn the_own_user_and_those_named_come_in_and_nobody_else() {
        let own = Uid::effective().as_raw();
        let rules = AccessRules::default();
        assert!(rules.admit(&peer(own, 77)) && !rules.admit(&peer(own + 4321, 77)));
        let rules = AccessRules {
            allow_uids: vec![own + 4321, OVERFLOW_UID],
            group: Some(88),
            own_processes_only: false,
        };
        assert!(rules.admit(&peer(own + 4321, 77)) && rules.admit(&peer(own + 1, 88)));
        assert!(!rules.admit(&peer(own + 1, 77)));
        assert!(!rules.admit(&peer(OVERFLOW_UID, 88)), "it may be anybody");
    }
}
