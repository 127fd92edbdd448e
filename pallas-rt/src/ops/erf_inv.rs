//! The inverse of the error function.
use super::elementwise_broadcast::GraphOperand;
use super::formula::{FormulaDtype, push_formula};
use pallas_graph::{Graph, Var};
use pallas_ir::{DType, Diag, E};

/// A polynomial for `w` below `end`: coefficients from the highest power, of `w - middle` in the first piece, of
/// `√w - middle` in the others.
struct PolynomialPiece {
    end: f64,
    middle: f64,
    coefficients: &'static [f64],
}

/// Appends `erf⁻¹(x) = x·p(w)` with `w = -ln(1 - x²)` of f32 or f64, by polynomials for pieces of `w` (M. Giles,
/// "Approximating the erfinv function", GPU Computing Gems 2, 2011), as XLA does, to the bit.
pub(crate) fn erf_inv(graph: &mut Graph, x: Var) -> Result<Var, Diag> {
    push_formula(graph, FormulaDtype::Any, [GraphOperand::Var(x)], |[x], dtype| {
        let pieces: &[PolynomialPiece] = if dtype == DType::F64 { &F64_ERF_INV_PIECES } else { &F32_ERF_INV_PIECES };
        let w = -(x * -x).log1p();
        let root = w.sqrt();
        // From the last piece to the first, each where w is below its end.
        let mut y: Option<E<'_>> = None;
        for (i, piece) in pieces.iter().enumerate().rev() {
            let t = (if i == 0 { w } else { root }) - piece.middle;
            let (first, rest) = piece.coefficients.split_first().expect("a polynomial has coefficients");
            let p = rest.iter().fold(x.like(*first), |p, &c| p.mul_add(t, x.like(c)));
            y = Some(y.map_or(p, |beyond| w.lt(w.like(piece.end)).select(p, beyond)));
        }
        let y = y.expect("there are pieces") * x;
        x.abs().eq(x.like(1.0)).select(x * f64::INFINITY, y)
    })
}

const F32_ERF_INV_PIECES: [PolynomialPiece; 2] = [
    PolynomialPiece {
        end: 5.0,
        middle: 2.5,
        coefficients: &[
            2.81022636e-08,
            3.43273939e-07,
            -3.5233877e-06,
            -4.39150654e-06,
            0.00021858087,
            -0.00125372503,
            -0.00417768164,
            0.246640727,
            1.50140941,
        ],
    },
    PolynomialPiece {
        end: f64::INFINITY,
        middle: 3.0,
        coefficients: &[
            -0.000200214257,
            0.000100950558,
            0.00134934322,
            -0.00367342844,
            0.00573950773,
            -0.0076224613,
            0.00943887047,
            1.00167406,
            2.83297682,
        ],
    },
];

const F64_ERF_INV_PIECES: [PolynomialPiece; 3] = [
    PolynomialPiece {
        end: 6.25,
        middle: 3.125,
        coefficients: &[
            -3.64441206401782e-21,
            -1.6850591381820166e-19,
            1.28584807152564e-18,
            1.1157877678025181e-17,
            -1.333171662854621e-16,
            2.0972767875968562e-17,
            6.637638134358324e-15,
            -4.054566272975207e-14,
            -8.151934197605472e-14,
            2.6335093153082323e-12,
            -1.2975133253453532e-11,
            -5.415412054294628e-11,
            1.0512122733215323e-09,
            -4.112633980346984e-09,
            -2.9070369957882005e-08,
            4.2347877827932404e-07,
            -1.3654692000834679e-06,
            -1.3882523362786469e-05,
            0.00018673420803405714,
            -0.000740702534166267,
            -0.006033670871430149,
            0.24015818242558962,
            1.6536545626831027,
        ],
    },
    PolynomialPiece {
        end: 16.0,
        middle: 3.25,
        coefficients: &[
            2.2137376921775787e-09,
            9.075656193888539e-08,
            -2.7517406297064545e-07,
            1.8239629214389228e-08,
            1.5027403968909828e-06,
            -4.013867526981546e-06,
            2.9234449089955446e-06,
            1.2475304481671779e-05,
            -4.7318229009055734e-05,
            6.828485145957318e-05,
            2.4031110387097894e-05,
            -0.0003550375203628475,
            0.0009532893797373805,
            -0.0016882755560235047,
            0.002491442096107851,
            -0.003751208507569241,
            0.005370914553590064,
            1.0052589676941592,
            3.0838856104922208,
        ],
    },
    PolynomialPiece {
        end: f64::INFINITY,
        middle: 5.0,
        coefficients: &[
            -2.7109920616438573e-11,
            -2.555641816996525e-10,
            1.5076572693500548e-09,
            -3.789465440126737e-09,
            7.61570120807834e-09,
            -1.496002662714924e-08,
            2.914795345090108e-08,
            -6.771199775845234e-08,
            2.2900482228026655e-07,
            -9.9298272942317e-07,
            4.526062597223154e-06,
            -1.968177810553167e-05,
            7.599527703001776e-05,
            -0.00021503011930044477,
            -0.00013871931833623122,
            1.0103004648645344,
            4.849906401408584,
        ],
    },
];
