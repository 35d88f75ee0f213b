//! The rules that are judged.

/// A rule of RoCE.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    /// Number in reports, from 1.
    pub number: u8,
    /// Short name for options and JSON.
    pub key: &'static str,
    /// Name in reports.
    pub title: &'static str,
    /// What the verdict answers.
    pub question: &'static str,
    /// Where the rule stands.
    pub source: &'static str,
}

macro_rules! rules {
    ($($name:ident = $number:literal $key:literal $title:literal $question:literal $source:literal;)*) => {
        $(#[doc = $question] pub static $name: Rule = Rule {
            number: $number, key: $key, title: $title, question: $question, source: $source,
        };)*

        /// All rules, by number.
        pub static ALL: &[&Rule] = &[$(&$name),*];
    };
}

rules! {
    ICRC = 1 "icrc" "ICRC" "Is every ICRC correct, and which mistake explains a wrong one?" "IBA 7.8.1, A17.3";
    NAKS = 2 "naks" "one NAK per gap" "Does the responder send one NAK for a gap, with the PSN that it expects?" "IBA 9.7.5.2.8";
    RESTART = 3 "restart" "restart point" "Does the requester send again from the right PSN?" "IBA 9.7.5.2.8, 9.7.6";
    DUPLICATES = 4 "duplicates" "duplicate requests" "Are repeated requests acknowledged again, and atomic operations not executed twice?" "IBA 9.7.5.1.2 to 9.7.5.1.4";
    READS = 5 "reads" "READ responses" "Are responses in order and complete, and are lost ones requested again from there on?" "IBA 9.7.5.1.9, 9.7.5.2.3";
    CAUSES = 6 "causes" "causes of retransmissions" "Why was each packet sent again, and how long did it take?" "IBA 9.7.5, 9.7.6";
    TIMEOUTS = 7 "timeouts" "retransmission timeout" "Which timer value do the timeouts fit, and how many came before the end?" "IBA 9.7.6.1.3";
    RNR = 8 "rnr" "receiver not ready" "Does the requester wait as long as the responder asks?" "IBA 9.7.5.2.8, table 45";
    CNP = 9 "cnp" "CNPs for marks" "Does the receiver answer ECN marks with CNPs, in time and without others?" "IBA A17.9.3";
    REACTION = 10 "reaction" "reaction to CNPs" "Does the sender reduce its rate after CNPs, and recover?" "Zhu et al. 2015, section 5";
    CLASSES = 11 "classes" "traffic classes" "Do DSCP, ECN and priority stay the same from end to end, and do answers have their class?" "IBA A17.9.2, RFC 3168";
    PFC = 12 "pfc" "priority flow control" "How long did ports pause each priority, and what waited for it?" "IEEE 802.1Q clause 36";
    OPCODES = 13 "opcodes" "order of opcodes" "Do First, Middle and Last follow each other, and does the RETH have the length of the message?" "IBA 9.7.4.1, 9.8.2.2.5";
    MTU = 14 "mtu" "path MTU" "Has every packet but the last a full payload, and is padding zero to three bytes?" "IBA 9.7.4.1.7, 9.7.4.2";
    MSN = 15 "msn" "message sequence numbers" "Do the MSNs count the completed messages?" "IBA 9.7.5.1.1, 9.7.7";
    HYGIENE = 16 "hygiene" "fields of headers" "Are MigReq, version, P_Key, reserved bits, UDP checksum and source port as NICs expect them?" "IBA 9.2, A17.4.5";
    ENTROPY = 17 "entropy" "source ports and order" "Do source ports spread the queue pairs, and do packets of a queue pair stay in order?" "IBA A17.4.5.1";
    REFUSALS = 18 "refusals" "refusals" "Is each refused request answered with the right NAK, and does the connection end then?" "IBA 9.7.5.2, 9.9.2";
    CM = 19 "cm" "connection management" "Was each connection set up and ended completely, and if not, why?" "IBA 12.9";
    COUNTERS = 20 "counters" "counters" "Do the counters of the NIC agree with the packets?" "documentation of the drivers";
    IN_FLIGHT = 21 "in_flight" "requests under way" "How many requests are under way, and who waits for whom?" "IBA 9.7.7.2";
    TIMES = 22 "times" "message times" "How long do messages take, and which goodput results?" "IBA 9.7.7";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row of the page begins with number, key, question and source of its rule.
    #[test]
    fn the_page_has_the_words_of_the_rules() {
        let page = include_str!("../../../../docs/reference/verdicts.md");
        let rows: Vec<Vec<&str>> = page
            .lines()
            .map(|line| line.split('|').map(str::trim).skip(1).collect())
            .filter(|cells: &Vec<&str>| cells.first().is_some_and(|cell| cell.parse::<u8>().is_ok()))
            .collect();
        assert!(rows.len() >= 7, "{} rows", rows.len());
        assert!(rows.is_sorted_by_key(|cells| cells[0].parse::<u8>().unwrap()), "by number");
        for cells in rows {
            let rule = ALL.iter().find(|rule| rule.number.to_string() == cells[0]).unwrap();
            let key = format!("`{}`", rule.key);
            assert_eq!(cells[1..4], [&key, rule.question, rule.source], "rule {}", rule.number);
        }
    }

    #[test]
    fn rules_are_numbered_and_named_once() {
        for (index, rule) in ALL.iter().enumerate() {
            assert_eq!(usize::from(rule.number), index + 1, "{}", rule.key);
            assert!(ALL.iter().filter(|other| other.key == rule.key).count() == 1, "{}", rule.key);
            assert!(rule.question.ends_with('?') && !rule.source.is_empty(), "{}", rule.key);
        }
    }
}
