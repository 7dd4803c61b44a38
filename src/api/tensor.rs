//! Parameters and gradients as a caller lends them for one step.

use super::engine::{ParamPlan, TensorRef};
use crate::config::Device;
use crate::error::{Error, Kind, Result};
use crate::tensor::DType;
use half::{bf16, f16};
use ndarray::{ArrayBase, ArrayView, ArrayViewMut, Data, DataMut, Dimension, IxDyn};
use std::ffi::c_void;
use std::marker::PhantomData;

/// A type of the elements of parameters and gradients: `f32`, `f64`, [`half::bf16`] or [`half::f16`].
pub trait Element: sealed::Sealed + Copy + 'static {
    /// The type as a value.
    const DTYPE: DType;
}

mod sealed {
    /// Keeps the list of element types closed: the engine reads memory as what [`super::Element`] says.
    pub trait Sealed {}
}

macro_rules! element {
    ($($type:ty => $dtype:ident),+) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DTYPE: DType = DType::$dtype;
            }
        )+
    };
}

element!(f32 => F32, f64 => F64, bf16 => Bf16, f16 => F16);

/// A stride that is not the one of row-major contiguous memory.
#[derive(Clone, Copy, Debug)]
struct Stride {
    axis: usize,
    found: isize,
    expected: isize,
}

/// Borrowed memory, not yet compared with what was declared.
#[derive(Clone, Debug)]
struct View {
    data: *mut u8,
    elements: usize,
    dtype: DType,
    /// Sizes, where the lender states them: a slice has the declared ones.
    shape: Option<IxDyn>,
    /// Why the memory cannot be used where it lies.
    stride: Option<Stride>,
    device: Device,
}

impl View {
    fn flat<T: Element>(data: *mut T, elements: usize) -> View {
        let data = data.cast::<u8>();
        View { data, elements, dtype: T::DTYPE, shape: None, stride: None, device: Device::CPU }
    }

    fn shaped<T: Element, D: Dimension>(data: *mut T, shape: D, strides: &[isize]) -> View {
        let stride = first_gap(shape.slice(), strides);
        View { shape: Some(shape.clone().into_dyn()), stride, ..View::flat(data, shape.size()) }
    }

    /// The memory, if it is what `param` was declared as. `dtype` is the type that it must have, if it must.
    fn checked(
        &self,
        param: &ParamPlan,
        what: &str,
        dtype: Option<DType>,
        device: Device,
    ) -> Result<TensorRef> {
        let (name, wanted) = (&param.spec.name, &param.spec.shape);
        let refuse = |kind, problem: String| Error::new(kind, format!("{what} '{name}': {problem}"));
        let mismatch = |problem| refuse(Kind::ShapeMismatch, problem);
        if let Some(shape) = self.shape.as_ref().map(IxDyn::slice) {
            if shape.len() != wanted.len() {
                let problem = format!("ndim = {}: expected {} ({wanted:?})", shape.len(), wanted.len());
                return Err(mismatch(problem));
            }
            if let Some(axis) = (0..wanted.len()).find(|axis| shape[*axis] != wanted[*axis]) {
                let (size, expected) = (shape[axis], wanted[axis]);
                let problem = format!("shape[{axis}] = {size}: expected {expected} ({wanted:?})");
                return Err(mismatch(problem).on_axis(axis));
            }
        }
        if self.elements != param.elements {
            let (len, expected) = (self.elements, param.elements);
            return Err(mismatch(format!("{len} elements: expected {expected} ({wanted:?})")));
        }
        if let Some(Stride { axis, found, expected }) = self.stride {
            let problem = format!(
                "strides[{axis}] = {found}: expected {expected}, row-major contiguous memory (make a contiguous copy)"
            );
            return Err(refuse(Kind::Unsupported, problem).on_axis(axis));
        }
        if let Some(dtype) = dtype.filter(|dtype| *dtype != self.dtype) {
            let (found, expected) = (self.dtype.name(), dtype.name());
            return Err(mismatch(format!("dtype {found}: expected {expected}, as at creation")));
        }
        if self.device != device {
            let Device { kind, id } = self.device;
            return Err(mismatch(format!(
                "device type {kind}, id {id}: expected type {}, id {}, the optimizer's device",
                device.kind, device.id
            )));
        }
        Ok(TensorRef { data: self.data, dtype: self.dtype })
    }
}

/// The last axis whose stride has a gap. The stride of an axis of size 1 does not matter.
fn first_gap(shape: &[usize], strides: &[isize]) -> Option<Stride> {
    let mut expected = 1;
    for axis in (0..shape.len()).rev() {
        let found = strides[axis];
        if shape[axis] > 1 && found != expected {
            return Some(Stride { axis, found, expected });
        }
        expected *= shape[axis] as isize;
    }
    None
}

/// A parameter, lent exclusively for one step, which updates it in place.
///
/// It is made from a slice, a `Vec`, an array or an `ndarray` view of any [`Element`] type. A slice has as many
/// elements as the declared shape, in row-major order; an `ndarray` view has the declared shape itself, row-major and
/// contiguous. What does not fit is refused by [`Optimizer::step`](crate::Optimizer::step), by name.
///
/// ```
/// use foam::TensorMut;
/// use foam::ndarray::Array2;
///
/// let (mut values, mut matrix) = (vec![0.0f32; 640], Array2::<f64>::zeros((8, 3)));
/// let tensors = [TensorMut::from(&mut values), TensorMut::from(&mut matrix)];
/// ```
#[derive(Debug)]
pub struct TensorMut<'a> {
    view: View,
    memory: PhantomData<&'a mut [u8]>,
}

/// A gradient, lent for one step and only read; or none, for a parameter that takes no part in the step.
///
/// It is made from what a [`TensorMut`] is made from, by shared reference, or from an `Option` of that. Its element type
/// may differ from its parameter's.
///
/// ```
/// use foam::Gradient;
///
/// let values = vec![0.0f32; 640];
/// let gradients = [Gradient::from(&values), Gradient::absent()];
/// let the_same = [Some(&values), None].map(Gradient::from);
/// ```
#[derive(Debug)]
pub struct Gradient<'a> {
    view: Option<View>,
    memory: PhantomData<&'a [u8]>,
}

impl TensorMut<'_> {
    /// A parameter in memory of a device (see [`Config::device`](crate::Config)), row-major and contiguous.
    ///
    /// # Safety
    /// `data` points to as many elements of type `dtype` as `shape` has, in memory of `device`. From the step that
    /// takes this tensor until [`Optimizer::synchronize`](crate::Optimizer::synchronize) returns, nobody else reads or
    /// writes them, except by work that is ordered behind the step on its stream.
    pub unsafe fn from_raw(data: *mut c_void, dtype: DType, shape: &[usize], device: Device) -> Self {
        TensorMut { view: raw(data, dtype, shape, device), memory: PhantomData }
    }

    pub(super) fn checked(&self, param: &ParamPlan, device: Device) -> Result<TensorRef> {
        self.view.checked(param, "parameter", Some(param.spec.dtype), device)
    }
}

impl Gradient<'_> {
    /// No gradient: the parameter takes no part in the step, and its clock does not advance.
    pub fn absent() -> Self {
        Gradient { view: None, memory: PhantomData }
    }

    /// A gradient in memory of a device, row-major and contiguous.
    ///
    /// # Safety
    /// As [`TensorMut::from_raw`], except that others may read the elements, too.
    pub unsafe fn from_raw(data: *const c_void, dtype: DType, shape: &[usize], device: Device) -> Self {
        Gradient { view: Some(raw(data.cast_mut(), dtype, shape, device)), memory: PhantomData }
    }

    pub(super) fn checked(&self, param: &ParamPlan, device: Device) -> Result<Option<TensorRef>> {
        let checked = |view: &View| view.checked(param, "gradient of parameter", None, device);
        self.view.as_ref().map(checked).transpose()
    }
}

fn raw(data: *mut c_void, dtype: DType, shape: &[usize], device: Device) -> View {
    let elements = shape.iter().product();
    View { data: data.cast(), elements, dtype, shape: Some(IxDyn(shape)), stride: None, device }
}

impl<'a, T: Element> From<&'a mut [T]> for TensorMut<'a> {
    fn from(values: &'a mut [T]) -> Self {
        TensorMut { view: View::flat(values.as_mut_ptr(), values.len()), memory: PhantomData }
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for TensorMut<'a> {
    fn from(values: &'a mut Vec<T>) -> Self {
        values.as_mut_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a mut [T; N]> for TensorMut<'a> {
    fn from(values: &'a mut [T; N]) -> Self {
        values.as_mut_slice().into()
    }
}

impl<'a, T: Element, D: Dimension> From<ArrayViewMut<'a, T, D>> for TensorMut<'a> {
    fn from(mut values: ArrayViewMut<'a, T, D>) -> Self {
        let data = values.as_mut_ptr();
        TensorMut { view: View::shaped(data, values.raw_dim(), values.strides()), memory: PhantomData }
    }
}

impl<'a, T: Element, S: DataMut<Elem = T>, D: Dimension> From<&'a mut ArrayBase<S, D>> for TensorMut<'a> {
    fn from(values: &'a mut ArrayBase<S, D>) -> Self {
        values.view_mut().into()
    }
}

impl<'a, T: Element> From<&'a [T]> for Gradient<'a> {
    fn from(values: &'a [T]) -> Self {
        // The engine only reads a gradient; its tensor type has no const form.
        let view = View::flat(values.as_ptr().cast_mut(), values.len());
        Gradient { view: Some(view), memory: PhantomData }
    }
}

impl<'a, T: Element> From<&'a Vec<T>> for Gradient<'a> {
    fn from(values: &'a Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T: Element, const N: usize> From<&'a [T; N]> for Gradient<'a> {
    fn from(values: &'a [T; N]) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T: Element, D: Dimension> From<ArrayView<'a, T, D>> for Gradient<'a> {
    fn from(values: ArrayView<'a, T, D>) -> Self {
        let data = values.as_ptr().cast_mut();
        let view = View::shaped(data, values.raw_dim(), values.strides());
        Gradient { view: Some(view), memory: PhantomData }
    }
}

impl<'a, T: Element, S: Data<Elem = T>, D: Dimension> From<&'a ArrayBase<S, D>> for Gradient<'a> {
    fn from(values: &'a ArrayBase<S, D>) -> Self {
        values.view().into()
    }
}

impl<'a, G: Into<Gradient<'a>>> From<Option<G>> for Gradient<'a> {
    fn from(gradient: Option<G>) -> Self {
        gradient.map_or_else(Gradient::absent, Into::into)
    }
}
