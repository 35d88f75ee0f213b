//! Memory windows: parts of a region with their own keys.

use roce::observe::with_causes;
use roce::verbs::*;

use crate::common::within;
use crate::world::*;

const AT: usize = 4096;
const LEN: usize = 1000;

fn binding(far: &Side, access: Access) -> WindowBinding {
    WindowBinding { region: far.region.lkey(), addr: far.region.addr() + AT as u64, len: LEN, access }
}

fn write(far: &Side, rkey: RKey, offset: usize) -> SendOp {
    SendOp::Write { remote_addr: far.region.addr() + (AT + offset) as u64, rkey }
}

/// Asserts that the peer refuses a request, on a new pair of queue pairs because the refusal ends them.
#[track_caller]
fn refused(near: &Side, far: &Side, op: SendOp) {
    let (near_qp, far_qp) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
    connect_qps(&near_qp, &far_qp, &ConnectOptions::default());
    near_qp.post_send(&SendWr::new(9, op, &[near.region.element(0..8)])).unwrap();
    let wc = fail(&near.send_cq, WcStatus::RemoteAccessError);
    assert_eq!(wc.cause, Cause::NakRemoteAccess);
}

#[test]
fn a_type_1_window_gives_access_to_its_part_only_and_changes_its_key() {
    within(60, || {
        let (near, far) = rc_pair();
        let window = far.pd.alloc_window(WindowType::Type1).unwrap();
        refused(&near, &far, write(&far, window.rkey(), 0));
        let first = window.bind(&binding(&far, Access::REMOTE_WRITE)).unwrap();
        assert_eq!(window.rkey(), first);
        near.fill(0, LEN, 1);
        near.carry_out(1, write(&far, first, 0), &[near.region.element(0..LEN)]);
        far.check(AT, LEN, 1);
        // An access beyond the end of the window, and one that its rights do not allow.
        refused(&near, &far, write(&far, first, LEN - 7));
        let read = SendOp::Read { remote_addr: far.region.addr() + AT as u64, rkey: first };
        refused(&near, &far, read);

        let second = window.bind(&binding(&far, Access::REMOTE_WRITE | Access::REMOTE_READ)).unwrap();
        assert_ne!(first, second);
        refused(&near, &far, write(&far, first, 0));
        near.carry_out(
            2,
            SendOp::Read { remote_addr: far.region.addr() + AT as u64, rkey: second },
            &[near.region.element(2000..2000 + LEN)],
        );
        near.check(2000, LEN, 1);

        let unbound = window.bind(&WindowBinding { len: 0, ..binding(&far, Access::REMOTE_WRITE) }).unwrap();
        refused(&near, &far, write(&far, unbound, 0));
        refused(&near, &far, write(&far, second, 0));
    });
}

#[test]
fn a_zero_based_window_begins_at_address_0() {
    within(60, || {
        let (near, far) = rc_pair();
        let window = far.pd.alloc_window(WindowType::Type1).unwrap();
        let rkey = window.bind(&binding(&far, Access::REMOTE_WRITE | Access::ZERO_BASED)).unwrap();
        near.fill(0, 100, 1);
        let elements = [near.region.element(0..100)];
        near.carry_out(1, SendOp::Write { remote_addr: 900, rkey }, &elements);
        far.check(AT + 900, 100, 1);
        refused(&near, &far, write(&far, rkey, 0));
    });
}

/// Binds a type 2 window on the far side's queue pair.
fn bind_type_2(far: &Side, window: &MemoryWindow, variant: u32) -> RKey {
    let new_rkey = RKey(window.rkey().0 & !0xff | variant);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let op = SendOp::BindWindow { window: window.rkey(), new_rkey, binding: binding(far, access) };
    assert_eq!(far.carry_out(1, op, &[]).opcode, WcOpcode::BindWindow);
    window.note_bound(new_rkey).unwrap();
    new_rkey
}

#[test]
fn a_type_2_window_belongs_to_a_queue_pair_until_it_is_invalidated() {
    within(60, || {
        let (near, far) = rc_pair();
        let window = far.pd.alloc_window(WindowType::Type2).unwrap();
        let rkey = bind_type_2(&far, &window, 0x33);
        near.fill(0, LEN, 1);
        near.carry_out(1, write(&far, rkey, 0), &[near.region.element(0..LEN)]);
        far.check(AT, LEN, 1);
        // A window that is bound to one queue pair refuses others.
        refused(&near, &far, write(&far, rkey, 0));

        // Invalidated by the owner.
        let wc = far.carry_out(2, SendOp::LocalInvalidate { rkey }, &[]);
        assert_eq!(wc.opcode, WcOpcode::LocalInvalidate);
        let rkey = bind_type_2(&far, &window, 0x44);
        near.carry_out(3, write(&far, rkey, 4), &[near.region.element(0..8)]);

        // Invalidated by the peer.
        far.receive(5, 0, 100);
        near.carry_out(4, SendOp::SendWithInvalidate(rkey), &[near.region.element(0..50)]);
        let wc = succeed(&far.recv_cq);
        assert!(wc.flags.contains(WcFlags::WITH_INV));
        assert_eq!((wc.wr_id, wc.byte_len, wc.invalidated), (5, 50, rkey));
        near.post(6, write(&far, rkey, 0), &[near.region.element(0..8)]);
        fail(&near.send_cq, WcStatus::RemoteAccessError);
    });
}

#[test]
fn invalidating_what_cannot_be_invalidated_fails() {
    within(60, || {
        let (near, far) = rc_pair();
        // A region is not a window.
        far.receive(1, 0, 100);
        near.post(1, SendOp::SendWithInvalidate(far.region.rkey()), &[near.region.element(0..8)]);
        let wc = completion(&near.send_cq);
        assert_ne!(wc.status, WcStatus::Success, "{wc:?}");

        let (near, far) = rc_pair();
        far.post(2, SendOp::LocalInvalidate { rkey: far.region.rkey() }, &[]);
        let wc = completion(&far.send_cq);
        assert_eq!((wc.wr_id, wc.cause), (2, Cause::LocalInvalidate), "{wc:?}");
        drop(near);
    });
}

#[test]
fn wrong_bindings_say_why() {
    within(60, || {
        let (_near, far) = rc_pair();
        let window = far.pd.alloc_window(WindowType::Type1).unwrap();
        let long = WindowBinding { len: MEMORY, ..binding(&far, Access::REMOTE_READ) };
        let error = with_causes(&window.bind(&long).unwrap_err()).to_string();
        assert_eq!(error, "operation failed on the memory key: the range lies outside the region");
        let plain = far.pd.allocate(100, Access::LOCAL_WRITE).unwrap();
        let over =
            WindowBinding { region: plain.lkey(), addr: plain.addr(), len: 10, access: Access::REMOTE_READ };
        let error = with_causes(&window.bind(&over).unwrap_err()).to_string();
        assert_eq!(error, "operation failed on the memory key: the key does not grant this access");
        let type_2 = far.pd.alloc_window(WindowType::Type2).unwrap();
        assert!(type_2.bind(&binding(&far, Access::REMOTE_READ)).is_err());
    });
}

#[test]
fn windows_and_regions_go_in_any_order() {
    within(60, || {
        let (near, far) = rc_pair();
        let (addr, rkey) = {
            let region = far.pd.allocate(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
            let window = far.pd.alloc_window(WindowType::Type1).unwrap();
            let access = Access::REMOTE_WRITE;
            let binding = WindowBinding { region: region.lkey(), addr: region.addr(), len: 100, access };
            let rkey = window.bind(&binding).unwrap();
            let remote_addr = region.addr();
            // The window keeps the memory.
            drop(region);
            near.carry_out(1, SendOp::Write { remote_addr, rkey }, &[near.region.element(0..100)]);
            (remote_addr, rkey)
        };
        refused(&near, &far, SendOp::Write { remote_addr: addr, rkey });

        // A key that a work request changed, that was not noted with `note_bound`, and that the peer then
        // invalidated.
        let window = far.pd.alloc_window(WindowType::Type2).unwrap();
        let region = far.pd.allocate(4096, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
        let rkey = RKey(window.rkey().0 & !0xff | 0x77);
        let binding = WindowBinding {
            region: region.lkey(),
            addr: region.addr(),
            len: 9,
            access: Access::REMOTE_WRITE,
        };
        far.carry_out(1, SendOp::BindWindow { window: window.rkey(), new_rkey: rkey, binding }, &[]);
        drop(region);
        far.receive(5, 0, 100);
        near.carry_out(4, SendOp::SendWithInvalidate(rkey), &[near.region.element(0..50)]);
        drop(window);
    });
}

/// As documented, dropping the last handle of a region revokes its keys. A window that is bound to the region
/// still gives access to its own part.
#[test]
fn a_dropped_region_is_closed_outside_the_window_that_is_bound_over_it() {
    within(60, || {
        let (near, far) = rc_pair();
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
        let region = far.pd.allocate(4096, access).unwrap();
        let window = far.pd.alloc_window(WindowType::Type1).unwrap();
        let (remote_addr, rkey, lkey) = (region.addr(), region.rkey(), region.lkey());
        let rights = Access::REMOTE_WRITE;
        let binding = WindowBinding { region: lkey, addr: remote_addr + 1000, len: 100, access: rights };
        let part = window.bind(&binding).unwrap();
        near.carry_out(1, SendOp::Write { remote_addr, rkey }, &[near.region.element(0..8)]);
        let another = region.clone();
        drop(region);
        near.carry_out(2, SendOp::Write { remote_addr, rkey }, &[near.region.element(0..8)]);
        drop(another);
        let inside = SendOp::Write { remote_addr: remote_addr + 1000, rkey: part };
        near.carry_out(3, inside, &[near.region.element(0..8)]);
        // The region's R_Key gives no access, outside the window or inside it. The window's key gives no
        // access beyond its part, and the region's L_Key is revoked too.
        refused(&near, &far, SendOp::Write { remote_addr, rkey });
        refused(&near, &far, SendOp::Write { remote_addr: remote_addr + 1000, rkey });
        refused(&near, &far, SendOp::Write { remote_addr: remote_addr + 1100, rkey: part });
        assert!(window.bind(&binding).is_err(), "the region does not exist any more");
        near.carry_out(4, inside, &[near.region.element(0..8)]);
    });
}

/// `note_bound` refuses the key of another window, which would otherwise be freed instead of the own one.
/// Both windows are then dropped as usual.
#[test]
fn a_window_does_not_take_the_key_of_another() {
    within(60, || {
        let (near, far) = rc_pair();
        let pd = far.context.alloc_pd().unwrap();
        let (one, other) =
            (pd.alloc_window(WindowType::Type2).unwrap(), far.pd.alloc_window(WindowType::Type2).unwrap());
        let rkey = bind_type_2(&far, &other, 0x33);
        let own = one.rkey();
        for foreign in [rkey, other.rkey(), far.region.rkey(), RKey(0), RKey(u32::MAX)] {
            let error = with_causes(&one.note_bound(foreign).unwrap_err()).to_string();
            assert_eq!(error, "operation failed on the memory key: the key is unknown or was revoked");
            assert_eq!(one.rkey(), own);
        }
        drop(one);
        // The other window still gives access. The domain of the first one is empty, so it can be dropped.
        near.fill(0, LEN, 1);
        near.carry_out(1, write(&far, rkey, 0), &[near.region.element(0..LEN)]);
        drop(pd);
    });
}

/// Requesting more memory than the machine has is an error.
#[test]
fn memory_that_nobody_has_is_refused() {
    within(60, || {
        let (near, _far) = rc_pair();
        for len in [1 << 46, usize::MAX] {
            let error = with_causes(&near.pd.allocate(len, Access::LOCAL_WRITE).unwrap_err()).to_string();
            let expected = format!("memory region: cannot allocate {len} bytes of memory; request fewer");
            assert!(error.ends_with(&expected), "{error}");
        }
    });
}
