//! Calls every public function that takes a number, a time or a length with 0, 1 and the largest value. No
//! call panics, runs forever or takes unlimited memory; impossible requests are errors.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use roce_packet::mad::{CmTimeout, CommId, RejReason, ServiceId, SidrStatus, TransportService};
use roce_packet::{Encapsulation, Path, PathMtu, Psn, Qpn, RnrTimer, Telemetry, TelemetryHop};
use roce_transport::cm::{
    CmAccepts, CmConfig, CmConnect, CmListen, CmOffer, CmResolve, CmTiming, ConnectionManager,
};
use roce_transport::congestion::{
    Ack, Algorithm, CnpScope, Congestion, CongestionControl, Dcqcn, DcqcnForm, DcqcnParameters, Dctcp,
    DctcpParameters, FixedRate, Hpcc, HpccParameters, Loss, NotificationPoint, Nscc, NsccParameters,
    PowerTcp, PowerTcpParameters, Rate, Start, Swift, SwiftParameters, ThetaPowerTcp, Timely, TimelyForm,
    TimelyParameters, Trim,
};
use roce_transport::{
    Access, Allowed, Batch, Counters, CqError, Engine, EngineConfig, Identification, Instant, LKey, Memory,
    Notify, Pacing, ProcessSlot, QpAttr, QpCapabilities, QpInit, QpOptions, QpState, QpType, RKey, Received,
    Recovery, RecvWr, RegisterError, SelectiveRepeat, SendOp, SendWr, Sge, Transmit, TxSlot, Wc,
    WindowBinding, WindowType, WordMemory, transition, units,
};

const SIZES: [usize; 4] = [0, 1, 1 << 46, usize::MAX];
const TIMES: [Instant; 4] =
    [Instant::ZERO, Instant::from_nanos(1), Instant::from_nanos(1 << 62), Instant::FAR_FUTURE];

fn path() -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
        destination: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)),
        source_port: u16::MAX,
        traffic_class: u8::MAX,
        hop_limit: u8::MAX,
        flow_label: u32::MAX,
        vlan: None,
    }
}

#[test]
fn times_stop_at_the_far_future() {
    for time in TIMES {
        for nanos in [0, 1, u64::MAX] {
            assert!(time.plus_nanos(nanos) >= time);
        }
        assert_eq!(time + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(time + Duration::ZERO, time);
        assert_eq!(Instant::ZERO - time, Duration::ZERO);
        assert_eq!(time.since(Instant::FAR_FUTURE), Duration::ZERO);
        let _ = format!("{time}");
    }
}

#[test]
fn memory_that_nobody_has_is_an_error() {
    for len in [1 << 46, usize::MAX - 7, usize::MAX] {
        assert_eq!(WordMemory::try_new(len).err(), Some(RegisterError::OutOfMemory { len }));
    }
    for len in [0, 1, 9] {
        let memory = WordMemory::try_new(len).unwrap();
        assert_eq!((memory.len(), memory.to_vec()), (len, vec![0; len]));
        for offset in [len, len + 1, usize::MAX - 7, usize::MAX] {
            assert_eq!(memory.read(offset, &mut [0]).is_err(), memory.write(offset, &[0]).is_err());
            assert!(memory.read(offset, &mut [0]).is_err());
            assert!(memory.compare_swap(offset, 0, 1).is_err() && memory.fetch_add(offset, 1).is_err());
            assert!(memory.store(offset, [0; 8]).is_err());
            memory.flush(offset, usize::MAX, true);
        }
    }
}

#[test]
fn counts_wrap_or_stay() {
    let counters = Counters {
        drop_short: u64::MAX,
        drop_bad_length: u64::MAX,
        rx_icrc_encapsulated: 1,
        ..Counters::default()
    };
    let _ = counters.dropped();
    for key in [0, 1, u32::MAX] {
        assert_eq!(LKey(key).next_variant().0 >> 8, key >> 8);
        assert_eq!(RKey(key).next_variant().0 >> 8, key >> 8);
    }
    for bits in [0, 1, u64::MAX] {
        let rates = [Rate::bits_per_second(bits), Rate::megabits_per_second(bits)];
        assert!(rates.iter().all(|rate| rate.get() > 0), "a rate of 0 would hang");
        let _ = format!("{} {}", rates[0], rates[1]);
    }
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in QpState::ALL {
            let _ = QpState::ALL.map(|to| transition(qp_type, from, to));
        }
    }
}

#[test]
fn batches_of_any_length() {
    let path = path();
    for len in SIZES {
        for most in [0, 1, usize::MAX] {
            for segments in [0, 1, u16::MAX] {
                let transmit = Transmit::new(path, Qpn::default(), len, 0);
                let mut batch = Batch::start(&transmit, segments, most);
                for _ in 0..3 {
                    let next = Transmit {
                        identification: batch.identification(&path, Qpn::default(), len),
                        ..transmit
                    };
                    let _ = (batch.accepts(&next), batch.accepts(&transmit));
                    batch.push(&next);
                }
            }
        }
        let implied = Received::implied(path, &[], len);
        assert!(implied.body.pieces().concat().len() <= 1 << 13);
    }
}

#[test]
fn texts_of_extreme_numbers() {
    for number in ["0", "1", "18446744073709551615", "18446744073709551616", "1e38", "0.000000000000000001"] {
        for unit in ["", "bps", "Tbps", "GiB", "ns", "s"] {
            let text = format!("{number}{unit}");
            let _ = (units::rate(&text), units::size(&text), units::duration_ns(&text));
            let _ = (units::duration_ps(&text), text.parse::<Rate>());
            let _ = Congestion::parse(&format!("fixed:{text}"));
            let _ = Congestion::parse(&format!("dcqcn,rpg_gd={text}"));
            let _ = format!("selective-repeat:cap={text}").parse::<Recovery>();
        }
    }
}

/// Returns parameters whose fields all have one value. Fields are public, so they accept values that text
/// would refuse.
fn dcqcn(value: u32) -> DcqcnParameters {
    DcqcnParameters {
        clamp_tgt_rate: false,
        clamp_tgt_rate_after_time_inc: true,
        rpg_time_reset: value,
        rpg_byte_reset: value,
        rpg_threshold: value,
        rpg_ai_rate: value,
        rpg_hai_rate: value,
        rpg_max_rate: value,
        rpg_min_rate: value,
        rpg_min_dec_fac: value,
        rpg_gd: value,
        rate_to_set_on_first_cnp: value,
        dce_tcp_g: value,
        dce_tcp_rtt: value,
        rate_reduce_monitor_period: value,
        initial_alpha_value: value,
        form: match value {
            0 => DcqcnForm::Paper,
            1 => DcqcnForm::Ns3,
            _ => DcqcnForm::Device,
        },
        alpha_first: value == 1,
    }
}

fn algorithms(value: u32) -> Vec<Algorithm> {
    let dctcp =
        DctcpParameters { gain: value, initial_window: value, max_window: value, additive_increase: value };
    let swift = SwiftParameters {
        base_target: value,
        hop_target: value,
        fs_range: value,
        fs_max_window: value,
        additive_increase: value,
        beta: value,
        max_decrease: value,
        initial_window: value,
        max_window: value,
    };
    let timely = TimelyParameters {
        min_rtt: value,
        t_low: value,
        t_high: value,
        additive_increase: value,
        hai_threshold: value,
        beta: value,
        gain: value,
        min_rate: value,
        segment: value,
        form: if value.is_multiple_of(2) { TimelyForm::Paper } else { TimelyForm::Ns3 },
    };
    let hpcc = HpccParameters {
        base_rtt: value,
        target: value,
        max_stage: value,
        additive_increase: value,
        min_rate: value,
        fast_react: value != 0,
    };
    let powertcp = PowerTcpParameters { base_rtt: value, gamma: value, flows: value, min_rate: value };
    let nscc = NsccParameters {
        base_rtt: value,
        target_delay: value,
        max_window: value,
        quick_gate: value,
        quick_adapt: value != 0,
    };
    let ns3 = DcqcnParameters { form: DcqcnForm::Ns3, ..dcqcn(value) };
    let paper = DcqcnParameters { rpg_byte_reset: 0, rate_to_set_on_first_cnp: 0, ..dcqcn(value) };
    vec![
        Algorithm::None,
        Algorithm::Fixed(Rate::bits_per_second(value.into())),
        Algorithm::Dcqcn(dcqcn(value)),
        Algorithm::Dcqcn(paper),
        Algorithm::Dcqcn(ns3),
        Algorithm::Hpcc(hpcc),
        Algorithm::PowerTcp(powertcp),
        Algorithm::ThetaPowerTcp(powertcp),
        Algorithm::Dctcp(dctcp),
        Algorithm::Swift(swift),
        Algorithm::Timely(timely),
        Algorithm::Nscc(nscc),
    ]
}

fn made(algorithm: &Algorithm, start: &Start) -> Option<Box<dyn CongestionControl>> {
    Some(match algorithm {
        Algorithm::Fixed(rate) => Box::new(FixedRate(*rate)),
        Algorithm::Dcqcn(parameters) => Box::new(Dcqcn::new(parameters, start)),
        Algorithm::Dctcp(parameters) => Box::new(Dctcp::new(parameters, start)),
        Algorithm::Swift(parameters) => Box::new(Swift::new(parameters, start)),
        Algorithm::Hpcc(parameters) => Box::new(Hpcc::new(parameters, start)),
        Algorithm::PowerTcp(parameters) => Box::new(PowerTcp::new(parameters, start)),
        Algorithm::ThetaPowerTcp(parameters) => Box::new(ThetaPowerTcp::new(parameters, start)),
        Algorithm::Timely(parameters) => Box::new(Timely::new(parameters, start)),
        Algorithm::Nscc(parameters) => Box::new(Nscc::new(parameters, start)),
        _ => return None,
    })
}

fn exercise(control: &mut dyn CongestionControl) {
    for now in TIMES {
        control.on_cnp(now);
        for bytes in [0, 1, u64::MAX] {
            control.on_send(now, (bytes as u32).min(1 << 20));
            report(control, now, bytes);
            for rtt in [None, Some(Duration::ZERO), Some(Duration::from_nanos(1)), Some(Duration::MAX)] {
                for (marked, hops) in [(false, None), (true, Some(0)), (false, Some(u8::MAX))] {
                    control.on_ack(now, &Ack { bytes, in_flight: bytes, rtt, marked, hops });
                }
            }
        }
        for (bytes, is_repeated) in [(0, false), (u64::MAX, false), (u64::MAX, true)] {
            control.on_trimmed(now, Trim { bytes, is_repeated });
        }
        control.on_loss(now, Loss::Nak);
        control.on_loss(now, Loss::Timeout);
        control.on_timer(now);
        assert!(control.rate().get() > 0);
        let _ = (control.window(), control.next_timer(), control.observe(now));
        let _ = control.observe(Instant::FAR_FUTURE);
    }
}

/// Reports telemetry of no switches, and of switches that have sent and queued `bytes` bytes, with extreme
/// clocks and rates.
fn report(control: &mut dyn CongestionControl, now: Instant, bytes: u64) {
    for rate in [0, 1, u64::MAX] {
        for time in [0, 1, now.as_nanos(), u64::MAX] {
            let mut telemetry = Telemetry::default();
            control.on_telemetry(now, &telemetry);
            for _ in 0..=Telemetry::MOST_HOPS {
                telemetry.push(TelemetryHop::new(rate, time, bytes, bytes), rate as u32);
                control.on_telemetry(now, &telemetry);
            }
        }
    }
}

#[test]
fn algorithms_with_extreme_parameters_and_times() {
    for value in [0, 1, u32::MAX] {
        for mtu in [0, 1, 4096, u32::MAX] {
            for line_rate in [Rate::bits_per_second(0), Rate::megabits_per_second(100_000), Rate::UNLIMITED] {
                for begin in [Instant::ZERO, Instant::FAR_FUTURE] {
                    let start = Start { now: begin, qpn: Qpn::new(0x11), mtu, line_rate };
                    for algorithm in algorithms(value).into_iter().chain(defaults()) {
                        if let Some(mut control) = made(&algorithm, &start) {
                            exercise(control.as_mut());
                        }
                    }
                }
            }
        }
    }
}

fn defaults() -> [Algorithm; 8] {
    [
        Algorithm::Dcqcn(DcqcnParameters::default()),
        Algorithm::Dctcp(DctcpParameters::default()),
        Algorithm::Hpcc(HpccParameters::default()),
        Algorithm::PowerTcp(PowerTcpParameters::default()),
        Algorithm::ThetaPowerTcp(PowerTcpParameters::default()),
        Algorithm::Swift(SwiftParameters::default()),
        Algorithm::Timely(TimelyParameters::default()),
        Algorithm::Nscc(NsccParameters::default()),
    ]
}

fn config(number: u64) -> EngineConfig {
    let size = number as usize;
    let short = number as u32;
    EngineConfig {
        process_slot: ProcessSlot::of(number as u32),
        max_outstanding_packets: short,
        max_read_packets: short,
        read_rate: Rate::bits_per_second(number),
        quantum: short,
        max_qp: size,
        max_cq: size,
        max_cqe: size,
        max_srq: size,
        max_pd: size,
        max_mr: size,
        max_events: size,
        line_rate: Rate::bits_per_second(number),
        recovery: Recovery::SelectiveRepeat(SelectiveRepeat {
            cap: short,
            rto_low: short,
            rto_high: short,
            few: short,
            reorder: short,
        }),
        pacing: Pacing { burst: short, preamble: number == 0, after_loss: true },
        notification: NotificationPoint {
            cnp_enable: true,
            min_time_between_cnps: short,
            cnp_dscp: short,
            cnp_802p_prio: short,
            cnp_delay: short,
            cnp_scope: CnpScope::AddressPair,
        },
        ..EngineConfig::from_number(number)
    }
}

/// Drives a queue pair in RTS under each algorithm, with a request of each kind and the smallest and largest
/// times.
fn drive(engine: &mut Engine, algorithm: Algorithm) {
    let Ok(pd) = engine.allocate_pd() else { return };
    let Ok(cq) = engine.create_cq(8) else { return };
    let capabilities = QpCapabilities { max_send_wr: 4, max_recv_wr: 1, ..QpCapabilities::default() };
    let init = QpInit {
        qp_type: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        capabilities,
        signal_all: true,
    };
    let options =
        QpOptions { congestion: Some(Congestion { algorithm, echo: true }), ..QpOptions::default() };
    let Ok(qpn) = engine.create_qp_with(&init, &options) else { return };
    let memory = Arc::new(WordMemory::new(64));
    let region = engine.register(pd, u64::MAX - 63, memory, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::REMOTE),
        ..QpAttr::to_state(QpState::Init)
    };
    let rtr = QpAttr {
        path: Some(path()),
        path_mtu: Some(PathMtu::Mtu256),
        dest_qpn: Some(Qpn::MULTICAST),
        rq_psn: Some(Psn::new(u32::MAX)),
        max_dest_rd_atomic: Some(128),
        min_rnr_timer: RnrTimer::new(0),
        ..QpAttr::to_state(QpState::Rtr)
    };
    let rts = QpAttr {
        sq_psn: Some(Psn::new(u32::MAX)),
        max_rd_atomic: Some(128),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        timeout: Some(31),
        ..QpAttr::to_state(QpState::Rts)
    };
    for attr in [init, rtr, rts] {
        engine.modify_qp(Instant::ZERO, qpn, &attr).unwrap();
    }
    let element = |length| Sge { addr: region.addr, length, lkey: region.lkey };
    for (op, length) in [
        (SendOp::Write { remote_addr: u64::MAX, rkey: RKey(u32::MAX) }, 64),
        (SendOp::Read { remote_addr: u64::MAX, rkey: RKey(0) }, 1 << 31),
        (SendOp::FetchAdd { remote_addr: u64::MAX, rkey: RKey(0), add: u64::MAX }, 8),
        (SendOp::Send, u32::MAX),
    ] {
        let elements = [element(length)];
        let _ = engine.post_send(Instant::ZERO, qpn, &SendWr::new(u64::MAX, op, &elements));
    }
    let mut buffer = [0; 512];
    for now in TIMES {
        for _ in 0..300 {
            if engine.poll_transmit(now, &mut TxSlot::new(&mut buffer), Allowed::All).is_none() {
                break;
            }
        }
        engine.handle_timeout(now, Duration::ZERO);
        let _ = (engine.poll_timeout(), engine.pending(now), engine.congestion(now, qpn));
        let _ = engine.poll_transmit(now, &mut TxSlot::new(&mut buffer[..1]), Allowed::Answers);
        let _ = engine.poll_transmit(now, &mut TxSlot::new(&mut []), Allowed::All);
        let received = Received::in_pieces(path(), Identification::Unsealed, [&[], &[0; 9]]);
        engine.handle(now, &received);
    }
    assert!(engine.destroy_qp(qpn).is_ok());
}

#[test]
fn engines_with_extreme_settings_and_times() {
    for number in [0, 1, u64::MAX] {
        for value in [0, 1, u32::MAX] {
            for algorithm in algorithms(value).into_iter().chain(defaults()) {
                drive(&mut Engine::new(config(number)), algorithm);
            }
        }
    }
}

#[test]
fn objects_of_extreme_sizes() {
    for number in [0, 1, u64::MAX] {
        let mut engine = Engine::new(config(number));
        let pd = engine.allocate_pd();
        for size in SIZES {
            if let Ok(cq) = engine.create_cq(size) {
                assert!(size == 1, "a queue of {size} entries was made");
                assert!(matches!(engine.resize_cq(cq, size.wrapping_sub(2)), Err(CqError::Capacity { .. })));
                engine.request_notification(cq, Notify::Next).unwrap();
                assert_eq!(engine.poll_cq(cq, &mut [Wc::default(); 3]), Ok(0));
                engine.destroy_cq(cq).unwrap();
            }
            let Ok(pd) = pd else { continue };
            for elements in SIZES {
                if let Ok(srq) = engine.create_srq(pd, size, elements) {
                    let _ = engine.arm_srq_limit(srq, usize::MAX);
                    let _ = engine.post_srq_recv(srq, &RecvWr { wr_id: u64::MAX, elements: &[] });
                    engine.destroy_srq(srq).unwrap();
                }
            }
            let Ok(cq) = engine.create_cq(1) else { continue };
            for field in 0..5 {
                let mut capabilities = QpCapabilities::default();
                *[
                    &mut capabilities.max_send_wr,
                    &mut capabilities.max_recv_wr,
                    &mut capabilities.max_send_sge,
                    &mut capabilities.max_recv_sge,
                    &mut capabilities.max_inline,
                ][field] = size;
                for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
                    let init = QpInit {
                        qp_type,
                        pd,
                        send_cq: cq,
                        recv_cq: cq,
                        srq: None,
                        capabilities,
                        signal_all: false,
                    };
                    let made = engine.create_qp(&init);
                    assert!(made.is_err() || size <= 1, "{capabilities:?}");
                    if let Ok(qpn) = made {
                        let _ = engine.post_recv(qpn, &RecvWr { wr_id: 1, elements: &[] });
                        engine.destroy_qp(qpn).unwrap();
                    }
                }
            }
            engine.destroy_cq(cq).unwrap();
        }
    }
}

#[test]
fn ranges_at_the_end_of_the_address_space() {
    let mut engine = Engine::new(EngineConfig::from_number(1));
    let pd = engine.allocate_pd().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
    for (addr, fits) in
        [(0, true), (1, true), (u64::MAX - 63, true), (u64::MAX - 62, false), (u64::MAX, false)]
    {
        let region = engine.register(pd, addr, Arc::new(WordMemory::new(64)), access);
        assert_eq!(region.is_ok(), fits, "{addr:#x}");
        let Ok(region) = region else { continue };
        let window = engine.allocate_window(pd, WindowType::Type1).unwrap();
        for start in [0, 1, addr, addr.wrapping_add(64), u64::MAX] {
            for len in SIZES {
                let binding =
                    WindowBinding { region: region.lkey, addr: start, len, access: Access::REMOTE_READ };
                let inside = len == 0 || start >= addr && len <= 64 && start - addr <= 64 - len as u64;
                let bound = engine.bind_window(pd, window, &binding);
                assert!(bound.is_err() || inside, "{binding:?}");
                if let Ok(key) = bound {
                    engine.deallocate_window(key).unwrap();
                    break;
                }
            }
            let _ = engine.deallocate_window(window);
        }
        let _ = engine.release_region(region.lkey);
    }
    for key in [0, 1, u32::MAX] {
        assert!(engine.query_region(LKey(key)).is_err() && engine.release_region(LKey(key)).is_err());
        assert!(engine.deregister(LKey(key)).is_err() && engine.deallocate_window(RKey(key)).is_err());
        let qpn = Qpn::new(key);
        assert!(engine.query_qp(qpn).is_none() && engine.destroy_qp(qpn).is_err());
        assert!(engine.queue_depths(qpn).is_none() && engine.qp_counters(qpn).is_none());
    }
}

#[test]
fn connection_managers_with_extreme_settings() {
    for size in [0, 1, usize::MAX] {
        for code in [0, 1, 31, u8::MAX] {
            let config = CmConfig {
                ack_delay: CmTimeout::new(code),
                max_connections: size,
                max_pending: size,
                max_lingering: size,
                max_queued: size,
                longest_wait: CmTimeout::new(code),
                ..CmConfig::new([code; 32], u64::MAX)
            };
            let mut manager = ConnectionManager::new(config);
            let service_id = ServiceId(u64::MAX);
            manager
                .listen(service_id, CmListen { accepts: CmAccepts::Both, backlog: size, ip_cm: false })
                .unwrap();
            let timing = CmTiming {
                response_timeout: CmTimeout::new(code),
                packet_lifetime: CmTimeout::new(code),
                max_retries: code,
            };
            let offer = CmOffer {
                qpn: Qpn::MULTICAST,
                starting_psn: Psn::new(u32::MAX),
                responder_resources: u8::MAX,
                initiator_depth: u8::MAX,
                rnr_retry_count: u8::MAX,
                srq: true,
            };
            for len in [0, 1, 92, 93, 1 << 20] {
                let data = vec![0xff; len];
                let connect = CmConnect {
                    path: path(),
                    service_id,
                    transport: TransportService::Rc,
                    offer,
                    path_mtu: PathMtu::Mtu4096,
                    flow_label: u32::MAX,
                    retry_count: u8::MAX,
                    timing,
                    ip_cm: None,
                    private_data: &data,
                };
                let resolve =
                    CmResolve { path: path(), service_id, timing, ip_cm: None, private_data: &data };
                let id = manager.connect(Instant::FAR_FUTURE, &connect);
                assert!(id.is_err() || len <= 92);
                let other = manager.resolve(Instant::ZERO, &resolve);
                for id in [id, other, Ok(CommId(0)), Ok(CommId(u32::MAX))].into_iter().flatten() {
                    let now = Instant::FAR_FUTURE;
                    let _ = (manager.delay(now, id, CmTimeout::MAX), manager.ready(now, id, &data));
                    let _ = (manager.preview(id, &offer), manager.accept(now, id, &offer, &data));
                    let _ = manager.answer(now, id, SidrStatus(u8::MAX), (Qpn::MULTICAST, u32::MAX), &data);
                    let _ = manager.reject(now, id, RejReason(u16::MAX), &data);
                    let _ = (manager.disconnect(now, id, &data), manager.notify_first_packet(now, id));
                    manager.release(now, id);
                }
                for byte in [0, 0xff] {
                    manager.handle_mad(Instant::ZERO, &path(), Qpn::MULTICAST, &vec![byte; len]);
                }
            }
            // Every deadline is at the end of time, where all deadlines expire.
            manager.handle_timeout(Instant::FAR_FUTURE);
            while manager.poll_transmit(Instant::FAR_FUTURE).is_some() {}
            while manager.poll_event().is_some() {}
        }
    }
}
