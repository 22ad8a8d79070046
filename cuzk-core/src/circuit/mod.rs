//! Constraint systems: what a circuit is synthesised into.
//!
//! Filecoin's circuits are generic over the constraint system, and each instance is tens of
//! thousands of lines of machine code. So there is exactly one: [`Synthesizer`], which hands every
//! variable and constraint to a [`ConstraintSink`]. To do something new with a circuit (prove it,
//! count it, fold it at tau, record it) is to write a sink.

mod assignment;
pub mod compiled;
mod density;
mod diagnosis;
mod synthesis;
mod witness;

pub use assignment::{Assignment, Synthesized};
pub use density::Density;
pub use diagnosis::{diagnose, Diagnosis};
pub use synthesis::{synthesize, Matrices, SynthesizeError};
pub use witness::{Stopped, Witness};

use bellpepper_core::{
    Circuit, ConstraintSystem, Index, LinearCombination, SynthesisError, Variable,
};
use blstrs::Scalar;

/// Receives a circuit's variables and constraints in order.
pub trait ConstraintSink: Send {
    /// Whether variables need their values; without, a blank circuit will do and its witness
    /// closures are never called.
    fn wants_values(&self) -> bool;
    /// Whether constraints are needed; without, their closures are never called, and all variables
    /// are one to the circuit: the linear combinations that it carries along (a third of the work
    /// of a synthesis) then stay one term long, and nobody sees them.
    fn wants_constraints(&self) -> bool {
        true
    }
    /// Whether constraints are needed with their right side; without, `c` comes empty.
    fn wants_c(&self) -> bool {
        true
    }
    /// The next public input. `value` is there when [`wants_values`](Self::wants_values). The first
    /// one is the constant one.
    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError>;
    /// The next auxiliary (witness) variable.
    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError>;
    /// The next constraint `a · b = c`, only over variables given before. Coefficients may be zero.
    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        c: LinearCombination<Scalar>,
    );
    /// The next constraint, when not [`wants_constraints`](Self::wants_constraints).
    fn skip(&mut self) {}
}

/// A circuit of any type, ready to be synthesised once.
pub trait AnyCircuit: Send {
    /// Feeds the circuit alone into `cs`, as bellpepper's own provers would.
    fn synthesize(self: Box<Self>, cs: &mut Synthesizer<'_>) -> Result<(), SynthesisError>;

    /// Feeds the constant one, then the circuit, then one `x · 0 = 0` constraint a public input
    /// (Groth16's provers add them to make the inputs independent), into `sink`.
    fn synthesize_into(
        self: Box<Self>,
        sink: &mut dyn ConstraintSink,
    ) -> Result<(), SynthesisError> {
        sink.input(Some(<Scalar as ff::Field>::ONE))?;
        let mut cs = Synthesizer::new(sink);
        self.synthesize(&mut cs)?;
        for i in 0..cs.inputs {
            cs.enforce(|| "input", |lc| lc + Variable(Index::Input(i)), |lc| lc, |lc| lc);
        }
        Ok(())
    }
}

impl<C: Circuit<Scalar> + Send> AnyCircuit for C {
    fn synthesize(self: Box<Self>, cs: &mut Synthesizer<'_>) -> Result<(), SynthesisError> {
        (*self).synthesize(cs)
    }
}

/// The one constraint system: numbers variables and passes everything on to its sink.
pub struct Synthesizer<'a> {
    sink: &'a mut dyn ConstraintSink,
    inputs: usize,
    aux: usize,
}

impl<'a> Synthesizer<'a> {
    /// For a sink that has the constant one already: it is input 0.
    pub fn new(sink: &'a mut dyn ConstraintSink) -> Self {
        Self { sink, inputs: 1, aux: 0 }
    }

    fn value<F>(&self, f: F) -> Result<Option<Scalar>, SynthesisError>
    where
        F: FnOnce() -> Result<Scalar, SynthesisError>,
    {
        if self.sink.wants_values() {
            f().map(Some)
        } else {
            Ok(None)
        }
    }

    fn variable(&self, index: Index) -> Variable {
        Variable(if self.sink.wants_constraints() { index } else { Index::Input(0) })
    }
}

impl ConstraintSystem<Scalar> for Synthesizer<'_> {
    type Root = Self;

    fn alloc<F, A, AR>(&mut self, _: A, f: F) -> Result<Variable, SynthesisError>
    where
        F: FnOnce() -> Result<Scalar, SynthesisError>,
        A: FnOnce() -> AR,
        AR: Into<String>,
    {
        let value = self.value(f)?;
        self.sink.aux(value)?;
        self.aux += 1;
        Ok(self.variable(Index::Aux(self.aux - 1)))
    }

    fn alloc_input<F, A, AR>(&mut self, _: A, f: F) -> Result<Variable, SynthesisError>
    where
        F: FnOnce() -> Result<Scalar, SynthesisError>,
        A: FnOnce() -> AR,
        AR: Into<String>,
    {
        let value = self.value(f)?;
        self.sink.input(value)?;
        self.inputs += 1;
        Ok(self.variable(Index::Input(self.inputs - 1)))
    }

    fn enforce<A, AR, LA, LB, LC>(&mut self, _: A, a: LA, b: LB, c: LC)
    where
        A: FnOnce() -> AR,
        AR: Into<String>,
        LA: FnOnce(LinearCombination<Scalar>) -> LinearCombination<Scalar>,
        LB: FnOnce(LinearCombination<Scalar>) -> LinearCombination<Scalar>,
        LC: FnOnce(LinearCombination<Scalar>) -> LinearCombination<Scalar>,
    {
        if !self.sink.wants_constraints() {
            return self.sink.skip();
        }
        let zero = LinearCombination::zero;
        let c = if self.sink.wants_c() { c(zero()) } else { zero() };
        self.sink.enforce(a(zero()), b(zero()), c);
    }

    fn push_namespace<NR, N>(&mut self, _: N)
    where
        NR: Into<String>,
        N: FnOnce() -> NR,
    {
    }

    fn pop_namespace(&mut self) {}

    fn get_root(&mut self) -> &mut Self {
        self
    }
}
