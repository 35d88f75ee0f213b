//! Connecting, accepting and shutting down streams.

use std::ffi::c_int;

use super::descriptors::called;
use super::stream::{News, Stream};
use super::wire::{Hello, Message};
use super::{Phase, Socket, State};
use crate::abi::{event_type, rdma_cm_id, rdma_conn_param};
use crate::answer::Errno;
use crate::rdmacm::addresses::{rdma_resolve_addr, rdma_resolve_route};
use crate::rdmacm::connect::{rdma_accept, rdma_connect, rdma_reject};
use crate::rdmacm::delivery::complete;
use crate::rdmacm::endpoint::rdma_get_request;

/// Timeout of connection management, in milliseconds.
const PATIENCE: c_int = 2000;
/// Number of retries after lost packets and RNR NAKs.
const RETRIES: u8 = 7;

/// Returns the private data of the event that an identifier stores.
///
/// # Safety
///
/// The identifier is alive and stores an event of a connection.
unsafe fn hello_of(id: *mut rdma_cm_id) -> Result<Hello, Errno> {
    // SAFETY: the caller's promise; the data have the length that the event says.
    unsafe {
        let given = (*(*id).event).param.conn;
        if given.private_data.is_null() {
            return Err(Errno::UNSUPPORTED);
        }
        Hello::parse(std::slice::from_raw_parts(given.private_data.cast(), given.private_data_len.into()))
    }
}

/// Returns the next request of a listener as an rsocket that is being accepted.
pub(super) fn accept(listener: &State) -> Result<Socket, Errno> {
    let mut id: *mut rdma_cm_id = std::ptr::null_mut();
    // SAFETY: the listener's identifier is alive.
    called(unsafe { rdma_get_request(listener.id.0, &raw mut id) })?;
    let socket = Socket::new(id, Phase::Accepting, listener.options.clone())?;
    if let Err(errno) = answer(&socket, id) {
        // SAFETY: the identifier lives as long as the rsocket.
        unsafe { rdma_reject(id, std::ptr::null(), 0) };
        return Err(errno);
    }
    Ok(socket)
}

fn answer(socket: &Socket, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let mut state = socket.state();
    // SAFETY: the identifier is alive and stores its request until the next event.
    unsafe {
        let hello = hello_of(id)?;
        let mut stream = Stream::new(id, &state.options)?;
        stream.meet(&hello);
        socket.watch(stream.descriptor())?;
        let data = stream.hello().emit();
        state.stream = Some(stream);
        let mut given: rdma_conn_param = (*(*id).event).param.conn;
        given.private_data = data.as_ptr().cast();
        given.private_data_len = Hello::LEN as u8;
        given.rnr_retry_count = RETRIES;
        match called(rdma_accept(id, &raw mut given)) {
            // The peer has not answered yet.
            Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
            Ok(()) => {
                state.phase = Phase::Connected;
                Ok(())
            }
        }
    }
}

impl State {
    /// Requests a connection from a peer.
    ///
    /// # Safety
    ///
    /// `to` is a socket address or null.
    pub(super) unsafe fn connect(&mut self, socket: &Socket, to: *mut libc::sockaddr) -> Result<(), Errno> {
        if self.phase != Phase::New {
            return Err(Errno(if self.phase == Phase::Connecting { libc::EALREADY } else { libc::EISCONN }));
        }
        let id = self.id.0;
        // SAFETY: the identifier is alive; the caller's promise.
        unsafe {
            called(rdma_resolve_addr(id, std::ptr::null_mut(), to, PATIENCE))?;
            called(rdma_resolve_route(id, PATIENCE))?;
            let stream = Stream::new(id, &self.options)?;
            socket.watch(stream.descriptor())?;
            let data = stream.hello().emit();
            self.stream = Some(stream);
            self.phase = Phase::Connecting;
            let mut given: rdma_conn_param = std::mem::zeroed();
            given.private_data = data.as_ptr().cast();
            given.private_data_len = Hello::LEN as u8;
            (given.flow_control, given.retry_count, given.rnr_retry_count) = (1, RETRIES, RETRIES);
            match called(rdma_connect(id, &raw mut given)) {
                Err(Errno::AGAIN) => Ok(()),
                Err(errno) => {
                    self.fail(errno);
                    Err(errno)
                }
                Ok(()) => self.establish(),
            }
        }
    }

    fn establish(&mut self) -> Result<(), Errno> {
        if self.phase == Phase::Connecting {
            // SAFETY: the identifier is alive and stores the event of the answer.
            let hello = unsafe { hello_of(self.id.0)? };
            self.stream.as_mut().ok_or(Errno::INVALID)?.meet(&hello);
        }
        self.phase = Phase::Connected;
        Ok(())
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        self.phase = Phase::Failed;
        self.error = errno.0;
    }

    /// Handles pending events and completions.
    pub(super) fn progress(&mut self) -> Result<(), Errno> {
        if matches!(self.phase, Phase::New | Phase::Listening | Phase::Failed) {
            return Ok(());
        }
        let mut is_gone = false;
        loop {
            // SAFETY: the identifier is alive.
            let event = unsafe { complete(self.id.0) };
            // SAFETY: the identifier stores an event that was completed.
            let kind = event.map(|()| unsafe { (*(*self.id.0).event).event });
            let is_opening = matches!(self.phase, Phase::Connecting | Phase::Accepting);
            match kind {
                Err(Errno::AGAIN) => break,
                Ok(event_type::ESTABLISHED) if is_opening => {
                    if let Err(errno) = self.establish() {
                        self.fail(errno);
                    }
                }
                Err(errno) if is_opening => self.fail(errno),
                Ok(event_type::DISCONNECTED | event_type::TIMEWAIT_EXIT) | Err(_) => is_gone = true,
                Ok(_) => {}
            }
        }
        self.take_completions()?;
        if is_gone && self.phase != Phase::Failed {
            self.phase = Phase::Disconnected;
        }
        Ok(())
    }

    fn take_completions(&mut self) -> Result<(), Errno> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let news = stream.take_completions()?;
        if self.phase != Phase::Connected {
            return Ok(());
        }
        match news {
            None => {}
            Some(News::Disconnect) => self.phase = Phase::Disconnected,
            Some(News::Shutdown) => {
                self.is_readable = false;
                if !self.is_writable {
                    self.phase = Phase::Disconnected;
                }
            }
            Some(News::Failure) => self.fail(Errno::IO),
        }
        match &mut self.stream {
            Some(stream) if self.phase == Phase::Connected => {
                stream.give_credits()?;
                self.mappings.announce(stream)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn arm(&self) -> Result<(), Errno> {
        self.stream.as_ref().map_or(Ok(()), Stream::arm)
    }

    pub(super) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Accepting)
    }
}

impl Socket {
    /// Shuts down one direction or both, and waits until the peer has all sent data.
    pub(super) fn shut_down(&self, how: c_int) -> Result<(), Errno> {
        let mut state = self.state();
        state.progress()?;
        if state.phase != Phase::Connected {
            return Ok(());
        }
        match how {
            libc::SHUT_RD => state.is_readable = false,
            libc::SHUT_WR => state.is_writable = false,
            libc::SHUT_RDWR => (state.is_readable, state.is_writable) = (false, false),
            _ => return Err(Errno::INVALID),
        }
        let message = match (state.is_readable, state.is_writable) {
            (_, true) => return Ok(()),
            (true, false) => Message::Shutdown,
            (false, false) => Message::Disconnect,
        };
        let has_place = |state: &State| {
            state.phase != Phase::Connected || state.stream.as_ref().is_none_or(Stream::has_control)
        };
        state = self.wait(state, false, has_place)?;
        if state.phase == Phase::Connected
            && let Some(stream) = &mut state.stream
        {
            stream.send_control(message)?;
        }
        let is_done = |state: &State| {
            state.phase != Phase::Connected || state.stream.as_ref().is_none_or(Stream::is_idle)
        };
        state = self.wait(state, false, is_done)?;
        if message == Message::Disconnect && state.phase == Phase::Connected {
            state.phase = Phase::Disconnected;
        }
        Ok(())
    }
}
