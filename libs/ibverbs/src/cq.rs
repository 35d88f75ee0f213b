//! Completion queues.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use roce::verbs::{
    ChannelTurn, ChannelWait, CqId, Notify, PollInProgress, RawCq, Wc, WcFlags, WcOpcode, WcStatus,
};
use roce_fault::verbs::Verb;

use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use crate::answer::{Errno, count, pointer, status, value};
use crate::channel::{Source, channel_of, source_of};
use crate::context::{Named, Open, open_of};
use crate::events::Acknowledgements;
use crate::live::{self, Kind, Object};
use crate::wait::{Sleep, Slept, Wait, wait};
use crate::{failing, faults};

/// An `ibv_cq_ex`, and therefore an `ibv_cq`, with the state of the library.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) abi: ibv_cq_ex,
    pub(crate) open: Arc<Open>,
    pub(crate) raw: RawCq,
    /// The current completion of the extended interface.
    pub(crate) present: Cell<Wc>,
    pub(crate) completion_events: Acknowledgements,
    pub(crate) async_events: Acknowledgements,
}

/// Maximum number of completions that one call moves.
const BURST: usize = 16;

impl Object for Cq {
    const KIND: Kind = Kind::CompletionQueue;

    fn handle(&self) -> u32 {
        self.abi.base.handle
    }
}

/// Returns the object behind an application's pointer.
///
/// # Safety
///
/// No other thread destroys the queue.
pub(crate) unsafe fn cq_of<'a>(cq: *mut ibv_cq) -> Result<&'a Cq, Errno> {
    // SAFETY: the `ibv_cq` is the first part of a `Cq`.
    unsafe { live::object(cq.cast::<Cq>()) }
}

/// Returns the object behind a pointer in calls that move data; checks only for null.
///
/// # Safety
///
/// `cq` is null, or a queue that is not destroyed.
#[inline]
pub(crate) unsafe fn cq_unchecked<'a>(cq: *mut ibv_cq) -> Result<&'a Cq, Errno> {
    // SAFETY: the caller's promise.
    unsafe { live::unchecked(cq.cast::<Cq>()) }
}

/// The application's parameters of a new queue.
pub(crate) struct Wanted {
    pub(crate) entries: usize,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    /// The engine for the queue.
    pub(crate) vector: u32,
}

/// Creates a queue without the functions of the extended interface.
///
/// # Safety
///
/// `context` is an open context of the application, and the channel belongs to it or is null.
pub(crate) unsafe fn create(context: *mut ibv_context, wanted: &Wanted) -> Result<*mut Cq, Errno> {
    // SAFETY: the caller's promise.
    let open = Arc::clone(unsafe { open_of(context)? });
    // SAFETY: as above.
    let channel = if wanted.channel.is_null() { None } else { Some(unsafe { channel_of(wanted.channel)? }) };
    let engine = usize::try_from(wanted.vector).map_err(|_| Errno::INVALID)?;
    if wanted.entries == 0 || engine >= open.context.engines() {
        return Err(Errno::INVALID);
    }
    let events = channel.map(|channel| &channel.events);
    let raw = open.raw().create_cq_on(engine, wanted.entries, events)?;
    let id = raw.id();
    // SAFETY: numbers, locks of the C library for which zero is the initial state, null pointers, and absent
    // functions.
    let mut abi: ibv_cq_ex = unsafe { std::mem::zeroed() };
    abi.base.context = context;
    abi.base.channel = wanted.channel;
    abi.base.cq_context = wanted.cq_context;
    abi.base.handle = u32::try_from(id.index()).unwrap_or(u32::MAX);
    abi.base.cqe = c_int::try_from(wanted.entries).unwrap_or(c_int::MAX);
    if let Some(channel) = channel {
        channel.add_user();
    }
    let object = live::release(Box::new(Cq {
        abi,
        open: Arc::clone(&open),
        raw,
        present: Cell::default(),
        completion_events: Acknowledgements::default(),
        async_events: Acknowledgements::default(),
    }));
    // SAFETY: the object was made just now.
    let async_events = unsafe { &raw const (*object).async_events };
    open.objects().cqs.insert(id, Named::new(object.cast(), async_events));
    Ok(object)
}

pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(Verb::ibv_create_cq, || {
        let wanted = Wanted {
            entries: usize::try_from(entries).map_err(|_| Errno::INVALID)?,
            cq_context,
            channel,
            vector: u32::try_from(vector).map_err(|_| Errno::INVALID)?,
        };
        // SAFETY: the application's pointers are an open context, and a channel of it or null.
        Ok(unsafe { create(context, &wanted)? }.cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(Verb::ibv_destroy_cq, || {
        // SAFETY: the application's pointer is a queue that it has not destroyed.
        let object = unsafe { cq_of(cq)? };
        object.open.raw().destroy_cq(&object.raw)?;
        Named::forget(&mut object.open.objects().cqs, &object.raw.id(), cq.cast());
        object.completion_events.wait();
        object.async_events.wait();
        // SAFETY: the channel outlives its queues.
        if let Ok(channel) = unsafe { channel_of(object.abi.base.channel) } {
            channel.remove_user();
        }
        // SAFETY: no event names it any more.
        drop(unsafe { live::reclaim(cq.cast::<Cq>()) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    status(Verb::ibv_resize_cq, || {
        // SAFETY: the application's pointer is a queue that it has not destroyed.
        let object = unsafe { cq_of(cq)? };
        let capacity = usize::try_from(entries).ok().filter(|entries| *entries > 0).ok_or(Errno::INVALID)?;
        object.open.raw().resize_cq(&object.raw, capacity)?;
        // SAFETY: as above; the field is the library's to write.
        unsafe { (*cq).cqe = entries };
        Ok(())
    })
}

/// Returns the number of an opcode in libibverbs.
pub(crate) const fn opcode_number(opcode: WcOpcode) -> c_int {
    match opcode {
        WcOpcode::Send => 0,
        WcOpcode::RdmaWrite => 1,
        WcOpcode::RdmaRead => 2,
        WcOpcode::CompareSwap => 3,
        WcOpcode::FetchAdd => 4,
        WcOpcode::BindWindow => 5,
        WcOpcode::LocalInvalidate => 6,
        WcOpcode::Flush => 8,
        WcOpcode::AtomicWrite => 9,
        WcOpcode::Recv => 128,
        WcOpcode::RecvRdmaWithImm => 129,
    }
}

/// Returns the field that contains immediate data as on the wire, or the invalidated key.
pub(crate) fn immediate(wc: &Wc) -> u32 {
    if wc.flags.contains(WcFlags::WITH_INV) { wc.invalidated.0 } else { u32::from_ne_bytes(wc.imm.0) }
}

/// Returns the flags of a completion. Every RoCE packet has a GRH or an IP header, and devices report that
/// for receives of all transports. Only UD receives have the 40 bytes in front of the data.
#[inline]
pub(crate) fn flags(wc: &Wc) -> c_uint {
    let is_receive = matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
    let has_header = is_receive && wc.status == WcStatus::Success;
    (if has_header { wc.flags | WcFlags::GRH } else { wc.flags }).bits()
}

#[inline]
fn completion(wc: &Wc) -> ibv_wc {
    ibv_wc {
        wr_id: wc.wr_id,
        status: c_int::from(wc.status as u8),
        opcode: opcode_number(wc.opcode),
        vendor_err: wc.cause as u32,
        byte_len: wc.byte_len,
        imm_data: immediate(wc),
        qp_num: wc.qpn.get(),
        src_qp: wc.src_qp.get(),
        wc_flags: flags(wc),
        pkey_index: 0,
        slid: 0,
        sl: wc.service_level,
        dlid_path_bits: 0,
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, out: *mut ibv_wc) -> c_int {
    count(Verb::ibv_poll_cq, || {
        // SAFETY: the application's pointer is a queue that it has not destroyed.
        let object = unsafe { cq_unchecked(cq)? };
        let room = usize::try_from(entries).map_err(|_| Errno::INVALID)?;
        let mut found = 0;
        // Most polls find nothing, and end here.
        while found < room
            && let Some(poll) = object.open.raw().begin_poll(&object.raw)
        {
            let part = (room - found).min(BURST);
            // SAFETY: the application has room for `entries` completions.
            match unsafe { finish_poll(object, poll, part, out.add(found)) } {
                Ok(polled) => {
                    found += polled;
                    if polled < part {
                        break;
                    }
                }
                Err(error) if found == 0 => return Err(error),
                Err(_) => break,
            }
        }
        // At most `entries`.
        Ok(found as c_int)
    })
}

/// Writes at most `room` completions for the application, and at most a burst. It is a separate function
/// because clearing the burst takes longer than polling an empty queue.
///
/// # Safety
///
/// `out` has room for `room` completions.
#[inline(never)]
unsafe fn finish_poll(
    object: &Cq,
    poll: PollInProgress<'_>,
    room: usize,
    out: *mut ibv_wc,
) -> Result<usize, Errno> {
    let mut burst = [Wc::default(); BURST];
    let found = poll.finish(&mut burst[..room.min(BURST)])?;
    for (index, wc) in burst[..found].iter_mut().enumerate() {
        if wc.status != WcStatus::Success {
            object.open.failures.note(wc, &object.open.context);
        } else if faults::is_active() {
            failing::decide(&object.open, wc);
        }
        // SAFETY: the caller's promise.
        unsafe { out.add(index).write(completion(wc)) };
    }
    Ok(found)
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(Verb::ibv_req_notify_cq, || {
        // SAFETY: the application's pointer is a queue that it has not destroyed.
        let object = unsafe { cq_unchecked(cq)? };
        let notify = if solicited_only != 0 { Notify::Solicited } else { Notify::Next };
        Ok(object.open.raw().request_notification(&object.raw, notify)?)
    })
}

/// Returns the queue of an event, and counts the event as delivered. Returns `None` if the queue was
/// destroyed meanwhile.
fn deliver(channel: &Source, id: CqId) -> Option<*mut Cq> {
    let objects = channel.open.objects();
    let object = objects.cqs.get(&id)?.object().cast::<Cq>();
    // SAFETY: an object that is listed is alive, and stays so while the lock is held.
    unsafe { (*object).completion_events.deliver() };
    Some(object)
}

/// A wait for the next event of a channel. The waiting thread watches the device itself, which avoids a
/// detour through the background thread.
struct EventWait {
    /// Declared before the channel, because it must be dropped first.
    wait: Option<ChannelWait>,
    channel: Arc<Source>,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
}

impl EventWait {
    /// Passes the event of a queue to the application, unless the queue is destroyed.
    fn give(&self, id: CqId) -> bool {
        let Some(object) = deliver(&self.channel, id) else { return false };
        // SAFETY: the application gave room for two pointers; a queue stays until its delivered events are
        // acknowledged.
        unsafe {
            self.cq.write(object.cast());
            self.cq_context.write((*object).abi.base.cq_context);
        }
        true
    }
}

impl Wait for EventWait {
    fn turn(&mut self, mut slept: Slept) -> Result<Option<Sleep>, Errno> {
        if slept == Slept::Interrupted {
            return Err(Errno::INTERRUPTED);
        }
        loop {
            while let Some(id) = self.channel.events.try_event() {
                if self.give(id) {
                    return Ok(None);
                }
            }
            if slept == Slept::NotYet {
                self.channel.open.context.check_device()?;
                if self.channel.descriptor.is_nonblocking()? {
                    return Err(Errno::AGAIN);
                }
            }
            let before = if slept == Slept::NotYet { None } else { Some(slept == Slept::Readable) };
            let wait = self.wait.get_or_insert_with(|| self.channel.events.begin_wait());
            match wait.turn(before)? {
                ChannelTurn::Event(id) if self.give(id) => return Ok(None),
                ChannelTurn::Event(_) => slept = Slept::Out,
                ChannelTurn::Sleep(how) => {
                    return Ok(Some(Sleep::new(how.descriptors().iter().copied(), Some(how.timeout()))));
                }
            }
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    wait(Verb::ibv_get_cq_event, (channel, cq, cq_context), |(channel, cq, cq_context)| {
        if cq.is_null() || cq_context.is_null() {
            return Err(Errno::INVALID);
        }
        Ok(EventWait { wait: None, channel: source_of(channel)?, cq, cq_context })
    })
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    value(Verb::ibv_ack_cq_events, (), || {
        // SAFETY: the application's pointer is a queue that it has not destroyed.
        if let Ok(object) = unsafe { cq_of(cq) } {
            object.completion_events.acknowledge(events.into());
        }
    });
}
