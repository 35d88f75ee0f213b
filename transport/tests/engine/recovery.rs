//! The texts of loss recoveries.

use roce_transport::{Recovery, SelectiveRepeat, with_causes};

#[test]
fn text_and_back() {
    for (text, recovery) in [
        ("go-back-n", Recovery::GoBackN),
        ("selective-repeat", Recovery::SelectiveRepeat(SelectiveRepeat::default())),
        (
            "selective-repeat:cap=7,rto_low=5,rto_high=1000,few=2,reorder=4",
            Recovery::SelectiveRepeat(SelectiveRepeat {
                cap: 7,
                rto_low: 5,
                rto_high: 1_000,
                few: 2,
                reorder: 4,
            }),
        ),
    ] {
        assert_eq!(text.parse(), Ok(recovery));
        assert_eq!(recovery.to_string().parse(), Ok(recovery));
    }
}

#[test]
fn what_is_wrong_is_said() {
    let error = |text: &str| with_causes(&text.parse::<Recovery>().unwrap_err()).to_string();
    for text in ["", "selective", "go-back-n:cap=7"] {
        let expected = "; there are go-back-n and selective-repeat";
        assert_eq!(error(text), format!("there is no loss recovery {text:?}{expected}"));
    }
    let wrong = "invalid parameter of selective-repeat";
    let cap = |value: &str| format!("{wrong}: cap is \"{value}\" and must be 1 to 4096 packets");
    assert_eq!(error("selective-repeat:cap=0"), cap("0"));
    assert_eq!(error("selective-repeat:cap=4097"), cap("4097"));
    assert_eq!(
        error("selective-repeat:rto_low=0"),
        format!("{wrong}: rto_low is \"0\" and must be 1 to 4000000 us")
    );
    let known = "there are cap, rto_low, rto_high, few, reorder";
    let unknown = format!("{wrong}: there is no parameter \"caps\"; {known}");
    assert_eq!(error("selective-repeat:caps=7"), unknown);
    let form = format!("{wrong}: \"cap\" is not of the form name=value");
    assert_eq!(error("selective-repeat:cap"), form);
}
