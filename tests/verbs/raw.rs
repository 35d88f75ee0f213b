//! Verbs on identifiers: an object in use cannot be destroyed, and memory may be at any address.

use std::sync::Arc;

use roce::verbs::*;

use crate::common::within;
use crate::world::*;

const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const EFAULT: i32 = 14;

/// An end that uses identifiers, with memory at an odd address.
struct RawSide {
    context: Context,
    pd: PdId,
    cq: RawCq,
    qpn: Qpn,
    start: u64,
    region: RegionAttributes,
}

const LEN: usize = 10_000;

impl RawSide {
    fn new(context: Context) -> Self {
        let raw = context.raw();
        let pd = raw.allocate_pd().unwrap();
        let cq = raw.create_cq(64, None).unwrap();
        let bytes = Box::leak(vec![0_u8; LEN + 3].into_boxed_slice());
        let start = bytes.as_mut_ptr().wrapping_add(3);
        // SAFETY: the bytes are never freed, and used through this pointer alone.
        let memory = unsafe { ForeignMemory::new(start, LEN, true) }.unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let region = raw.register(pd, start as u64, Arc::new(memory), access).unwrap();
        let init = raw_init(pd, &cq);
        let qpn = raw.create_qp(&init, &QpOptions::default()).unwrap();
        Self { start: start as u64, pd, cq, qpn, region, context }
    }

    fn connect(&self, peer: &Self) {
        let raw = self.context.raw();
        let to_init = QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE),
            ..QpAttr::to_state(QpState::Init)
        };
        raw.modify_qp(self.qpn, &to_init).unwrap();
        let address = peer.context.address().unwrap();
        let path = raw.path_of_qp(self.qpn, peer.qpn, address, &PathOptions::default()).unwrap();
        let to_rtr = QpAttr {
            path: Some(path),
            path_mtu: Some(PathMtu::Mtu1024),
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(Psn::new(7)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(RnrTimer::new(12).unwrap()),
            ..QpAttr::to_state(QpState::Rtr)
        };
        raw.modify_qp(self.qpn, &to_rtr).unwrap();
        let to_rts = QpAttr {
            sq_psn: Some(Psn::new(7)),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..QpAttr::to_state(QpState::Rts)
        };
        raw.modify_qp(self.qpn, &to_rts).unwrap();
    }

    fn bytes(&self) -> *mut u8 {
        self.start as *mut u8
    }

    fn completion(&self) -> Wc {
        let mut done = [Wc::default()];
        until("a completion", || self.context.raw().poll_cq(&self.cq, &mut done).unwrap() == 1);
        done[0].result().unwrap()
    }
}

#[test]
fn memory_of_the_application_at_an_odd_address_is_written_and_read() {
    within(60, || {
        for wire in Wire::ALL {
            let Some((near, far)) = wire.open() else { continue };
            let (near, far) = (RawSide::new(near), RawSide::new(far));
            near.connect(&far);
            far.connect(&near);
            for (len, shift) in [(1, 0), (8, 5), (1024, 1), (5000, 7), (4993, 4)] {
                // SAFETY: both ranges lie inside the leaked bytes, and nothing is posted over them now.
                unsafe {
                    std::slice::from_raw_parts_mut(near.bytes(), len).fill(len as u8 | 1);
                    std::slice::from_raw_parts_mut(far.bytes(), LEN).fill(0);
                }
                let remote = SendOp::Write { remote_addr: far.start + shift, rkey: far.region.rkey };
                let element = Sge { addr: near.start, length: len as u32, lkey: near.region.lkey };
                near.context.raw().post_send(near.qpn, &SendWr::new(1, remote, &[element])).unwrap();
                near.completion();
                // SAFETY: the WRITE is over.
                let written = unsafe { std::slice::from_raw_parts(far.bytes(), LEN) };
                let expected = |index| {
                    if (shift as usize..shift as usize + len).contains(&index) { len as u8 | 1 } else { 0 }
                };
                assert!((0..LEN).all(|index| written[index] == expected(index)), "{wire:?} {len} {shift}");
            }
        }
    });
}

#[test]
fn what_is_in_use_cannot_be_destroyed_and_stays_as_it_was() {
    let (near, _far) = Wire::Memory.open().unwrap();
    let raw = near.raw();
    let errno = |result: Result<(), VerbsError>| result.unwrap_err().errno();
    let side = RawSide::new(near.clone());
    let srq = raw.create_srq(side.pd, 16, 2).unwrap();
    let init = QpInit { srq: Some(srq), signal_all: false, ..raw_init(side.pd, &side.cq) };
    let second = raw.create_qp(&init, &QpOptions::default()).unwrap();
    assert_eq!(errno(raw.deallocate_pd(side.pd)), EBUSY);
    assert_eq!(errno(raw.destroy_cq(&side.cq)), EBUSY);
    assert_eq!(errno(raw.destroy_srq(srq)), EBUSY);
    // All objects still work.
    raw.post_srq_recv(srq, &RecvWr { wr_id: 1, elements: &[] }).unwrap();
    assert_eq!(raw.poll_cq(&side.cq, &mut [Wc::default()]).unwrap(), 0);

    let window = raw.allocate_window(side.pd, WindowType::Type1).unwrap();
    let bindable = {
        // SAFETY: leaked bytes.
        let memory =
            unsafe { ForeignMemory::new(Box::leak(Box::new([0_u64; 8])).as_mut_ptr().cast(), 64, true) };
        raw.register(side.pd, 0, Arc::new(memory.unwrap()), Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
    };
    let binding = WindowBinding { region: bindable.lkey, addr: 0, len: 8, access: Access::REMOTE_READ };
    let window = raw.bind_window(side.pd, window, &binding).unwrap();
    assert_eq!(errno(raw.deregister(bindable.lkey)), EBUSY);
    raw.deallocate_window(window).unwrap();
    raw.deregister(bindable.lkey).unwrap();
    assert_eq!(errno(raw.deregister(bindable.lkey)), EINVAL);

    raw.destroy_qp(second).unwrap();
    raw.destroy_qp(side.qpn).unwrap();
    raw.destroy_srq(srq).unwrap();
    raw.destroy_cq(&side.cq).unwrap();
    assert_eq!(errno(raw.deallocate_pd(side.pd)), EBUSY, "the region");
    raw.deregister(side.region.lkey).unwrap();
    raw.deallocate_pd(side.pd).unwrap();
    assert_eq!(errno(raw.deallocate_pd(side.pd)), EINVAL);
    assert_eq!(errno(raw.destroy_qp(side.qpn)), EINVAL);
}

#[test]
fn the_numbers_of_errors_are_those_of_libibverbs() {
    let (near, _far) = Wire::Memory.open().unwrap();
    let raw = near.raw();
    let side = RawSide::new(near.clone());
    let errno = |result: Result<(), VerbsError>| result.unwrap_err().errno();
    let send = |elements: &[Sge]| raw.post_send(side.qpn, &SendWr::new(1, SendOp::Send, elements));
    assert_eq!(errno(send(&[])), EINVAL, "RESET");
    assert_eq!(errno(raw.modify_qp(side.qpn, &QpAttr::to_state(QpState::Rts))), EINVAL);
    let to_init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpAttr::to_state(QpState::Init)
    };
    raw.modify_qp(side.qpn, &to_init).unwrap();
    let receive = |elements: &[Sge]| raw.post_recv(side.qpn, &RecvWr { wr_id: 1, elements });
    assert_eq!(errno(receive(&[Sge::default(); 5])), EINVAL);
    (0..CAPABILITIES.max_recv_wr).for_each(|_| receive(&[]).unwrap());
    assert_eq!(errno(receive(&[])), ENOMEM);
    assert_eq!(errno(raw.create_cq(0, None).map(drop)), EINVAL);
    // SAFETY: nothing is ever accessed there.
    let memory = unsafe { ForeignMemory::new(64 as *mut u8, 8, true) };
    assert_eq!(memory.unwrap_err().raw_os_error(), Some(EFAULT));
}
