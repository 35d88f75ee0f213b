//! Tests of whole figures.

use crate::axis::Axis;
use crate::chart::{Axes, Band, Chart, Dots, Figure, Line, MOST_LINES, Mark, Spread, Width};
use crate::drawing::{Drawing, Ink, Shape, Text};
use crate::layout::drawing;
use crate::metrics;
use crate::series::{Series, look};

const WIDTHS: [Width; 3] = [Width::Column, Width::Page, Width::Screen];

fn chart(points: Vec<(f64, f64)>) -> Chart {
    let lines = vec![Line { name: "a < b".into(), points }];
    Chart { title: "t".into(), x_label: "ms".into(), y_label: "Gb/s".into(), lines, ..Chart::default() }
}

/// Returns charts of many kinds.
fn figures() -> Vec<Figure> {
    let line = |name: &str, scale: f64| Line {
        name: name.to_owned(),
        points: (1..30).map(|x| (f64::from(x) * 1e3, scale * f64::from(x % 7 + 1))).collect(),
    };
    let around = |line: &Line| Band {
        name: "95 % confidence of the mean".into(),
        points: line.points.iter().map(|(x, y)| (*x, 0.9 * y, 1.1 * y)).collect(),
        spread: Spread::Bars,
    };
    let algorithms = vec![line("DCQCN", 100.0), line("HPCC", 1.0), line("Swift", 3.0), line("PowerTCP", 0.9)];
    let bands = algorithms.iter().map(around).collect();
    let slowdown = Chart {
        title: "Slowdown of completion times, 99th percentile".into(),
        x_label: "size of flows up to, bytes".into(),
        y_label: "completion time relative to that of the flow alone".into(),
        lines: algorithms.clone(),
        bands,
        axes: Axes { x: Axis::Sizes, y: Axis::Log },
        ..Chart::default()
    };
    let counts = Chart {
        title: "Flows of each size".into(),
        y_label: "flows".into(),
        lines: vec![line("flows", 12.0)],
        is_low: true,
        ..slowdown.clone()
    };
    let rows = Chart {
        title: "Pauses".into(),
        x_label: "time, ms".into(),
        rows: (0..12).map(|port| format!("switch {port}, a long name of a port->host-{port}")).collect(),
        bands: (0..12)
            .map(|row| Band {
                points: vec![
                    (0.1, f64::from(row), f64::from(row) + 0.75),
                    (9.0, f64::from(row), f64::from(row) + 0.75),
                ],
                ..Band::default()
            })
            .collect(),
        ..Chart::default()
    };
    let many = Chart {
        lines: (0..15)
            .map(|n| {
                line(
                    &format!("congestion control dcqcn:paper,rpg_ai_rate={n},rpg_hai_rate={n}, {n} senders"),
                    1.0,
                )
            })
            .collect(),
        dots: vec![Dots { name: "CNPs".into(), points: vec![(3.0, 1e6)], mark: Mark::Cross }],
        top: Some(4.0),
        ..slowdown.clone()
    };
    let caption =
        "Leaf-spine of 32 hosts; seeds 1 to 5. Bars: 95 % confidence of the mean over seeds (Student's t).";
    let figure = |charts: Vec<Chart>, columns: usize| Figure { charts, columns, caption: caption.to_owned() };
    vec![
        Figure::from(chart(Vec::new())),
        Figure::from(chart(vec![(3.0, 0.0)])),
        figure(vec![slowdown.clone(), counts.clone()], 1),
        figure(vec![slowdown.clone(), slowdown.clone(), counts], 3),
        figure(vec![slowdown; 8], 4),
        figure(vec![rows], 1),
        figure(vec![many], 1),
        Figure::default(),
    ]
}

fn texts(drawing: &Drawing) -> impl Iterator<Item = &Text> {
    drawing.shapes.iter().filter_map(|shape| match shape {
        Shape::Text(text) => Some(text),
        _ => None,
    })
}

/// An estimate of widths that does not use the metrics: that of a wide font such as DejaVu Sans.
fn wide_estimate(text: &Text) -> f64 {
    let em = |letter: char| match letter {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.31,
        ' ' | 'f' | 't' | 'r' | '(' | ')' | '-' | '/' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' | '@' | '\u{2026}' => 0.95,
        '<' | '>' | '=' | '+' => 0.72,
        'A'..='Z' => 0.68,
        _ => 0.6,
    };
    let bold = if text.is_bold { 1.07 } else { 1.0 };
    text.text.chars().map(em).sum::<f64>() * text.size * bold
}

/// Estimates the width of a text.
type Measure<'a> = &'a dyn Fn(&Text) -> f64;

#[test]
fn texts_do_not_overlap_or_leave_the_figure() {
    let by_metrics = |text: &Text| metrics::width(&text.text, text.size, text.is_bold);
    let measures: [(&str, Measure<'_>); 2] = [("metrics", &by_metrics), ("wide font", &wide_estimate)];
    for (number, figure) in figures().iter().enumerate() {
        for width in WIDTHS {
            let drawing = drawing(figure, width);
            for (measure, of) in measures {
                let boxes: Vec<(&Text, [f64; 4])> =
                    texts(&drawing).map(|text| (text, text.bounds(of(text)))).collect();
                let place = format!("figure {number} at {width:?} by {measure}");
                for (index, (text, [left, up, right, down])) in boxes.iter().enumerate() {
                    let is_inside =
                        *left >= 0.0 && *up >= 0.0 && *right <= drawing.width && *down <= drawing.height;
                    assert!(is_inside, "{place}: {text:?} leaves {} x {}", drawing.width, drawing.height);
                    for (other, [l, u, r, d]) in &boxes[..index] {
                        let is_apart = r <= left || right <= l || d <= up || down <= u;
                        assert!(is_apart, "{place}: {text:?} overlaps {other:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn shapes_stay_inside_the_figure() {
    for (number, figure) in figures().iter().enumerate() {
        for width in WIDTHS {
            let drawing = drawing(figure, width);
            let places = drawing.shapes.iter().flat_map(|shape| match shape {
                Shape::Lines { lines, .. } => lines.as_flattened(),
                Shape::Path { places, .. } | Shape::Area { places, .. } | Shape::Marks { places, .. } => {
                    places.as_slice()
                }
                Shape::Text(_) => &[],
            });
            for (x, y) in places {
                assert!(
                    (0.0..=drawing.width).contains(x) && (0.0..=drawing.height).contains(y),
                    "figure {number} at {width:?}: {x} {y}"
                );
            }
            let svg = figure.to_svg(width);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "figure {number} at {width:?}");
        }
    }
}

#[test]
fn widths_are_those_of_papers() {
    let figure = Figure::from(chart(vec![(0.0, 1.0), (1.0, 2.0)]));
    let width = |width: Width| drawing(&figure, width).width;
    assert_eq!(WIDTHS.map(width), [3.3 * 72.0, 7.0 * 72.0, 860.0]);
    assert!(figure.to_svg(Width::Column).contains(" width=\"3.3in\""));
    assert!(figure.to_svg(Width::Page).contains(" width=\"7in\""));
    assert_eq!(Width::from_inches("3.3"), Some(Width::Column));
    assert_eq!((Width::from_inches("7"), Width::from_inches("5")), (Some(Width::Page), None));
}

#[test]
fn a_swatch_shows_the_dash_and_the_mark_of_its_line() {
    let line = |n: usize| Line { name: format!("line {n}"), points: vec![(0.0, n as f64), (1.0, n as f64)] };
    let chart = Chart { lines: (0..MOST_LINES + 2).map(line).collect(), ..Chart::default() };
    let drawing = drawing(&Figure::from(chart), Width::Column);
    for index in 0..MOST_LINES {
        let look = look(index);
        let is_own = |ink: &Ink| *ink == Ink::Series(look.color);
        let dashes = drawing.shapes.iter().filter(|shape| {
            matches!(shape, Shape::Path { stroke, .. } if is_own(&stroke.ink) && stroke.dash == look.dash)
        });
        let marks = drawing.shapes.iter().filter_map(|shape| match shape {
            Shape::Marks { places, mark, ink, .. } if is_own(ink) && *mark == look.mark => Some(places.len()),
            _ => None,
        });
        // The swatch, and the line with its two points.
        assert_eq!((dashes.count(), marks.collect::<Vec<_>>()), (2, vec![1, 2]), "line {index}");
    }
    assert!(texts(&drawing).any(|text| text.text == "and 2 more"));
}

#[test]
fn a_name_has_one_look_in_all_charts() {
    let line = |name: &str| Line { name: name.to_owned(), points: vec![(0.0, 1.0), (1.0, 2.0)] };
    let with =
        |names: &[&str]| Chart { lines: names.iter().map(|name| line(name)).collect(), ..Chart::default() };
    let figure =
        Figure { charts: vec![with(&["a", "b"]), with(&["b", "c", "a"])], columns: 2, ..Figure::default() };
    let series = Series::of(&figure);
    let of = |chart: usize| {
        (0..figure.charts[chart].lines.len()).map(|n| series.index(&figure.charts[chart], n)).collect()
    };
    let all: [Vec<usize>; 2] = [of(0), of(1)];
    assert_eq!(all, [vec![0, 1], vec![1, 2, 0]]);
    let drawing = drawing(&figure, Width::Page);
    for name in ["a", "b", "c"] {
        assert_eq!(texts(&drawing).filter(|text| text.text == name).count(), 1, "{name}");
    }
}

/// Reads the series, x and y of each line of a table.
fn rows(table: &str) -> Vec<(String, f64, f64)> {
    let mut lines = table.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("chart\tseries\tx\ty\tlow\thigh"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        assert_eq!(cells.len(), 6, "{line}");
        (cells[1].to_owned(), cells[2].parse().unwrap(), cells[3].parse().unwrap())
    };
    lines.map(row).collect()
}

#[test]
fn the_table_has_the_points_that_are_drawn() {
    let peaks =
        (0..20_000).map(|n| (f64::from(n) / 7.0, if n % 5_000 == 17 { 900.0 } else { f64::from(n % 3) }));
    let figure = Figure::from(chart(peaks.collect()));
    let drawing = drawing(&figure, Width::Column);
    let drawn = drawing.shapes.iter().find_map(|shape| match shape {
        Shape::Path { places, stroke, .. } if matches!(stroke.ink, Ink::Series(_)) && places.len() > 2 => {
            Some(places)
        }
        _ => None,
    });
    let (drawn, table) = (drawn.unwrap(), rows(&figure.to_table()));
    assert_eq!(drawn.len(), table.len());
    // The axes are linear, so two points determine each of them.
    let of = |x: f64, table_x: f64| (x, table_x);
    let (first, last) = (0, table.len() - 1);
    let across = [of(drawn[first].0, table[first].1), of(drawn[last].0, table[last].1)];
    let low = table.iter().position(|row| row.2 == 0.0).unwrap();
    let high = table.iter().position(|row| row.2 == 900.0).unwrap();
    let up = [of(drawn[low].1, table[low].2), of(drawn[high].1, table[high].2)];
    let at = |[(p0, v0), (p1, v1)]: [(f64, f64); 2], value: f64| p0 + (value - v0) / (v1 - v0) * (p1 - p0);
    for ((x, y), (name, table_x, table_y)) in drawn.iter().zip(&table) {
        assert_eq!(name, "a < b");
        assert!((at(across, *table_x) - x).abs() < 1e-4 && (at(up, *table_y) - y).abs() < 1e-4, "{x} {y}");
    }
}

#[test]
fn the_table_has_spreads_dots_and_rows() {
    let figures = figures();
    let table = figures[2].to_table();
    assert!(table.starts_with("# Leaf-spine of 32 hosts; seeds 1 to 5."), "{table}");
    assert!(table.contains("# chart 2: Flows of each size; x: size of flows up to, bytes; y: flows"));
    assert!(table.contains("\n1\tDCQCN\t1000\t200\t180\t220\n"), "{table}");
    assert!(figures[5].to_table().contains("\n1\tswitch 3, a long name of a port->host-3\t0.1\t\t3\t3.75\n"));
    assert!(figures[6].to_table().contains("\n1\tCNPs\t3\t1000000\t\t\n"));
}

#[test]
fn a_line_lies_inside_the_frame_and_has_gaps() {
    let mut chart = chart(vec![
        (0.0, 1.0),
        (1.0, 2.0),
        (1.0, f64::NAN),
        (3.0, 1.0),
        (3.5, f64::INFINITY),
        (4.0, f64::NAN),
        (5.0, 1.0),
        (6.0, 2.0),
    ]);
    let band = |points: &[f64]| points.iter().map(|y| (*y, *y, y + 1.0)).collect::<Vec<_>>();
    chart.bands = vec![Band {
        name: "b".into(),
        points: [band(&[0.0, 1.0]), vec![(1.0, f64::NAN, 1.0)], band(&[3.0, 4.0])].concat(),
        ..Band::default()
    }];
    let drawing = drawing(&Figure::from(chart), Width::Screen);
    let count =
        |is_wanted: fn(&Shape) -> bool| drawing.shapes.iter().filter(|shape| is_wanted(shape)).count();
    let is_line =
        |shape: &Shape| matches!(shape, Shape::Path { stroke, .. } if matches!(stroke.ink, Ink::Series(_)));
    // With the swatches. The single point between two gaps is a mark.
    assert_eq!((count(is_line), count(|shape| matches!(shape, Shape::Area { .. }))), (3, 3));
}

#[test]
fn a_logarithmic_axis_has_no_zero() {
    let mut chart = chart(vec![(0.0, 1.0), (1.0, 0.0), (1024.0, 10.0), (1_048_576.0, 1000.0)]);
    chart.axes = Axes { x: Axis::Bytes, y: Axis::Log };
    assert_eq!(rows(&Figure::from(chart.clone()).to_table()).len(), 2);
    let svg = chart.to_svg();
    for label in [">1K<", ">1M<", ">10<", ">1000<"] {
        assert!(svg.contains(label), "{label}: {svg}");
    }
}

#[test]
fn axes_fit_the_range_of_the_lines() {
    let mut wide = chart(vec![(1.0, 1.0), (500.0, 3.0)]);
    wide.lines.push(Line { name: "c".into(), points: vec![(1.0, 400.0)] });
    wide.fit_axes();
    assert_eq!(wide.axes, Axes { x: Axis::Log, y: Axis::Log });
    let mut narrow = chart(vec![(1.0, 1.0), (50.0, 3.0)]);
    narrow.fit_axes();
    assert_eq!(narrow.axes, Axes::default());
    let mut distribution = Chart { steps: true, ..wide.clone() };
    distribution.axes = Axes::default();
    distribution.fit_axes();
    assert_eq!(distribution.axes, Axes { x: Axis::Log, y: Axis::Linear }, "percent begin at zero");
}

#[test]
fn a_peak_is_cut_and_named() {
    let mut points: Vec<(f64, f64)> = (0..1_000).map(|x| (f64::from(x), 2.0)).collect();
    points[7].1 = 500.0;
    let mut chart = chart(points);
    chart.cut_peaks();
    assert_eq!(chart.top, Some(3.0));
    let svg = chart.to_svg();
    assert!(svg.contains("The axis is cut at 3; the highest peak is 500."), "{svg}");
    let mut flat = Chart {
        lines: vec![Line { name: String::new(), points: vec![(0.0, 1.0), (1.0, 3.9)] }],
        ..Chart::default()
    };
    flat.cut_peaks();
    assert_eq!(flat.top, None);
}

#[test]
fn dots_of_one_pixel_are_one_dot() {
    let mut chart = chart(vec![(0.0, 2.0), (1.0, 2.0)]);
    let points = vec![(0.5, 9.0), (0.5, 9.0), (0.25, f64::NAN), (1.0, 1.0)];
    chart.dots = vec![Dots { name: "lost <".into(), points, mark: Mark::Cross }];
    let drawing = drawing(&Figure::from(chart.clone()), Width::Screen);
    let crosses = drawing.shapes.iter().filter_map(|shape| match shape {
        Shape::Marks { places, mark: Mark::Cross, .. } => Some(places.len()),
        _ => None,
    });
    assert_eq!(crosses.collect::<Vec<_>>(), [1, 2], "the legend, and two places");
    let svg = chart.to_svg();
    assert!(svg.contains("lost &lt;") && svg.contains("a &lt; b"), "{svg}");
}

/// Objects of a PDF document, found through its cross-reference table alone.
fn objects(pdf: &[u8]) -> Vec<&[u8]> {
    let find = |from: usize, what: &[u8]| {
        from + pdf[from..].windows(what.len()).position(|part| part == what).expect("part of the document")
    };
    let number = |at: usize, digits: usize| {
        std::str::from_utf8(&pdf[at..at + digits]).unwrap().trim().parse::<usize>().unwrap()
    };
    assert!(pdf.starts_with(b"%PDF-1.4\n") && pdf.ends_with(b"%%EOF\n"));
    let text = String::from_utf8_lossy(pdf);
    let begin: usize =
        text.rsplit("startxref\n").next().and_then(|end| end.lines().next()).unwrap().parse().unwrap();
    assert_eq!(&pdf[begin..begin + 7], b"xref\n0 ");
    let count = number(begin + 7, find(begin + 7, b"\n") - begin - 7);
    let entries = find(begin + 7, b"\n") + 1;
    assert_eq!(find(begin, b"trailer"), entries + 20 * count, "an entry has 20 bytes");
    (1..count)
        .map(|object| {
            let offset = number(entries + 20 * object, 10);
            let head = format!("{object} 0 obj\n");
            assert!(pdf[offset..].starts_with(head.as_bytes()), "object {object}");
            &pdf[offset + head.len()..find(offset, b"\nendobj\n")]
        })
        .collect()
}

#[test]
fn a_pdf_document_can_be_read() {
    for figure in figures() {
        for width in WIDTHS {
            let pdf = figure.to_pdf(width);
            let objects = objects(&pdf);
            let text = |object: &[u8]| String::from_utf8(object.to_vec()).unwrap();
            assert!(
                text(objects[0]).contains("/Type /Catalog") && text(objects[1]).contains("/Kids [3 0 R]")
            );
            let drawing = drawing(&figure, width);
            let size = format!(
                "/MediaBox [0 0 {} {}]",
                crate::drawing::fixed(drawing.width),
                crate::drawing::fixed(drawing.height)
            );
            assert!(text(objects[2]).contains(&size), "{}", text(objects[2]));
            let stream = text(objects[5]);
            let (head, rest) = stream.split_once("\nstream\n").unwrap();
            let content = rest.strip_suffix("\nendstream").unwrap();
            assert_eq!(head, format!("<< /Length {} >>", content.len()));
            assert_eq!(content.matches(" Tj ET").count(), texts(&drawing).count());
            assert!(content.is_ascii() && !content.contains("NaN") && !content.contains("inf"));
            assert_eq!(pdf, figure.to_pdf(width), "equal figures give equal bytes");
        }
    }
}

#[test]
fn a_dark_page_has_other_colors() {
    let style = crate::dark_style("#16181c");
    let svg = figures()[2].to_svg(Width::Screen);
    for color in ["#ffffff", "#222222", "#0072b2", "#000000", "#e4e4e4"] {
        assert!(svg.contains(&format!("=\"{color}\"")), "{color}");
        assert!(style.contains(&format!("svg.plot [fill=\"{color}\"]{{fill:")), "{color}: {style}");
    }
}

/// Charts with one spread each have it in different colors.
#[test]
fn spreads_of_several_charts_with_one_name_have_one_entry() {
    let chart = |name: &str| {
        let points = vec![(1.0, 1.0), (2.0, 2.0)];
        let band = Band {
            name: "95 % confidence".into(),
            points: vec![(1.0, 0.5, 1.5), (2.0, 1.5, 2.5)],
            spread: Spread::Bars,
        };
        let lines = vec![Line { name: name.into(), points }];
        Chart { lines, bands: vec![band], ..Chart::default() }
    };
    let charts = vec![chart("delay"), chart("rate")];
    let svg = Figure { charts, columns: 1, caption: String::new() }.to_svg(Width::Column);
    assert_eq!(svg.matches(">95 % confidence</text>").count(), 1, "{svg}");
}

/// A small figure, byte by byte. After an intended change, replace the file with the text that the failure
/// prints.
#[test]
fn a_small_figure_is_known() {
    let lines = vec![
        Line { name: "DCQCN".into(), points: vec![(2.0, 10.0), (4.0, 200.0), (8.0, 400.0)] },
        Line { name: "HPCC".into(), points: vec![(2.0, 2.0), (4.0, 3.0), (8.0, 5.0)] },
    ];
    let band = Band {
        name: "95 % confidence".into(),
        points: vec![(2.0, 1.0, 3.0), (8.0, 4.0, 6.0)],
        spread: Spread::Bars,
    };
    let mut chart = Chart {
        x_label: "senders".into(),
        y_label: "longest queue, KB".into(),
        bands: vec![Band::default(), band],
        lines,
        ..Chart::default()
    };
    chart.fit_axes();
    let caption = "Star of 9 hosts, seeds 1 to 3.".to_owned();
    let svg = Figure { charts: vec![chart], columns: 1, caption }.to_svg(Width::Column);
    assert!(svg == include_str!("small.svg"), "\n{svg}");
}
