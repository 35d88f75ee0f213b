//! Checks of user ids.

use std::fs;

use rustix::process::geteuid;

/// Returns whether `uid`, as the kernel reports it for a peer or a file, is this process's own user or root.
/// Returns `false` for the overflow id (65534 unless `/proc/sys/kernel/overflowuid` differs). The kernel
/// reports this id for every user that the user namespace of this process does not map
/// (`user_namespaces(7)`). If the namespace maps every user, the overflow id is an ordinary one.
/// (`user_namespaces(7)`). If the namespace maps every user, the overflow id is an ordinary one.
#[must_use]
pub fn is_own_or_root(uid: u32) -> bool {
    const ROOT: u32 = 0;
    (uid == geteuid().as_raw() || uid == ROOT) && identifies(uid)
}

/// Returns whether `uid` is one user in this process's user namespace, and not the id of all unmapped users.
#[must_use]
pub fn identifies(uid: u32) -> bool {
    // Read on each call, because a process can enter another user namespace at any time.
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_OVERFLOW_UID);
    uid != overflow || fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_everyone(&map))
}

/// Returns whether a `uid_map` maps every user id: 0 to 4294967294, because 4294967295 means "no user".
fn maps_everyone(map: &str) -> bool {
    let lines: Option<Vec<[u64; 2]>> = map
        .lines()
        .map(|line| {
            let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
            let (inside, _outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some([inside, count])
        })
        .collect();
    // The lines of a map never overlap.
    lines.is_some_and(|lines| lines.iter().map(|[_, count]| count).sum::<u64>() >= u64::from(u32::MAX))
}

/// `DEFAULT_OVERFLOWUID` of the kernel.
const USUAL_OVERFLOW_UID: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_map_of_all_users_maps_everyone() {
        assert!(maps_everyone("         0          0 4294967295\n"));
        assert!(maps_everyone("0 100000 65536\n65536 0 4294901759\n"));
        assert!(!maps_everyone("0 200000 65536\n"));
        assert!(!maps_everyone("0 1000 1\n"));
        assert!(!maps_everyone(""));
        assert!(!maps_everyone("0 0 4294967295\nx"));
    }

    #[test]
    fn the_own_user_and_root_are_known_and_others_are_not() {
        let own = geteuid().as_raw();
        assert_eq!(is_own_or_root(own), identifies(own));
        assert!(is_own_or_root(0));
        assert!(!is_own_or_root(own.wrapping_add(1).max(1)));
    }
}
