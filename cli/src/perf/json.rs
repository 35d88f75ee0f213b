//! The document of `--out_json`, with the names of perftest.

use roce::verbs::Context;
use roce_measure::Role;
use roce_measure::perf::exchange::Stream;
use roce_measure::perf::{Plan, Row, Session, Test, Verb};
use serde_json::{Map, Value, json};

fn on(is_on: bool) -> &'static str {
    if is_on { "ON" } else { "OFF" }
}

/// Rounds to a number of digits behind the point, like perftest.
fn rounded(value: f64, digits: i32) -> f64 {
    let factor = 10_f64.powi(digits);
    (value * factor).round() / factor
}

/// Returns the parameters and the last row.
pub(super) fn document<S: Stream>(
    plan: &Plan,
    context: &Context,
    session: &Session<S>,
    rows: &[Row],
) -> Value {
    json!({ "test_info": test_info(plan, context, session), "results": rows.last().map(|row| results(plan, row)) })
}

fn test_info<S: Stream>(plan: &Plan, context: &Context, session: &Session<S>) -> Map<String, Value> {
    let mut info = Map::new();
    let mut put = |name: &str, value: Value| info.insert(name.to_owned(), value);
    let is_sender = session.role() == Role::Client || plan.bidirectional;
    let name = |text: String| text.replace(' ', "_");
    put("test", name(super::table::title(plan)).into());
    put("Dual_port", "OFF".into());
    put("Device", super::table::device(context).into());
    put("Number_of_qps", plan.num_qp.into());
    put("Transport_type", "IB".into());
    put("Connection_type", json!(plan.connection));
    put("Using_SRQ", "OFF".into());
    put("PCIe_relax_order", "Unsupported".into());
    put("ibv_wr_API", "OFF".into());
    if is_sender {
        put("TX_depth", plan.tx_depth.into());
    }
    if let Some(list) = plan.post_list {
        put("Post_List", list.into());
    }
    if plan.verb == Verb::Send && (session.role() == Role::Server || plan.bidirectional) {
        put("RX_depth", plan.rx_depth.into());
    }
    if plan.test == Test::Bandwidth {
        put("CQ_Moderation", plan.cq_mod.into());
    }
    put("Mtu", session.agreement().mtu.bytes().into());
    put("Link_type", "Ethernet".into());
    put("GID_index", plan.gid_index.unwrap_or(0).into());
    if matches!(plan.verb, Verb::Read | Verb::Atomic) {
        put("Outstand_reads", plan.out_reads.into());
    } else {
        put("Max_inline_data", plan.inline.into());
    }
    put("rdma_cm_QPs", on(plan.rdma_cm).into());
    let over_rdma_cm = plan.rdma_cm || plan.comm_rdma_cm;
    put("Data_ex_method", if over_rdma_cm { "rdma_cm" } else { "Ethernet" }.into());
    if plan.rdma_cm && plan.traffic_class != 0 {
        put("TOS", plan.traffic_class.into());
    }
    info
}

fn results(plan: &Plan, row: &Row) -> Value {
    if let Some(bandwidth) = &row.bandwidth {
        let average = bandwidth.average.bandwidth(plan.gigabits);
        let digits = if plan.gigabits && average < 0.1 { 6 } else { 2 };
        let peak = bandwidth.peak.map_or(0.0, |peak| peak.bandwidth(plan.gigabits));
        return json!({
            "MsgSize": row.size, "n_iterations": bandwidth.messages, "BW_peak": rounded(peak, digits),
            "BW_average": rounded(average, digits), "MsgRate": rounded(bandwidth.average.messages_per_s / 1e6, 6),
        });
    }
    let Some(latency) = &row.latency else { return Value::Null };
    let (average, messages) = (rounded(latency.average_us, 2), latency.messages);
    let Some(found) = &latency.distribution else {
        return json!({
            "MsgSize": row.size, "n_iterations": messages, "t_avg": average, "tps_average": rounded(latency.per_s, 2),
        });
    };
    json!({
        "MsgSize": row.size, "n_iterations": messages, "t_min": rounded(found.least_us, 2),
        "t_max": rounded(found.most_us, 2), "t_typical": rounded(found.typical_us, 2), "t_avg": average,
        "t_stdev": rounded(found.deviation_us, 2), "percentile_99": rounded(found.percentile_99_us, 2),
        "percentile_99.9": rounded(found.percentile_99_9_us, 2),
    })
}
