"""Known causes of torch 2.13's and ExecuTorch 1.5.1's failures, and ways out, which `test_causes.py` tries."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from ...errors import CodeChanged, PteforgeError, SourceError, StageError, StageFailed
from .diagnosis import Cause, add_findings

Circumstance = Literal[
    "quantized",  # the recipe quantizes
    "own state",  # several methods of which at least one changes buffers, and each has its own copy of them
]
"""What a cause depends on besides the message."""


@dataclass(frozen=True, slots=True)
class KnownCause:
    """An entry of the table; ``{name}`` in its text is the pattern's group of that name, or the recipe."""

    stages: tuple[str, ...]  # that fail in this way; empty for any
    pattern: str
    problem: str
    remedies: tuple[str, ...]
    in_log: bool = False  # whether the end of the stage's log may have the pattern, and not only the message
    when: Circumstance | None = None  # in which it applies; None for any


def _on(
    stages: str, pattern: str, *, in_log: bool = False, when: Circumstance | None = None
) -> Callable[..., KnownCause]:
    """Begins an entry, which takes the problem and then the remedies; `stages` are separated by spaces."""
    return lambda problem, *remedies: KnownCause(tuple(stages.split()), pattern, problem, remedies, in_log, when)


_BISECT = "`pteforge bisect` says in which program it is lost, and at which operators"
_FLOAT = "or leave it in floating point: a recipe without `quantize`"
_TRACING = "export source_transform quantize edge"
_NO_SPACE = r"No space left on device|Disk quota exceeded"
# errors about dynamic shapes that the model's code causes, and not the way in which the shapes are written
_REFUSED = re.compile(r"Constraints violated|data-dependent|specialized")

CAUSES: tuple[KnownCause, ...] = (
    _on("", _NO_SPACE)(
        "a disk is full",
        "make room, for example with `pteforge store gc --keep-last 1 --keep-newer-than 1h`, and run again",
        "or use a larger disk: `--store`, `--out` and PTEFORGE_CACHE name the folders, TMPDIR that of temporary files",
    ),
    # Models that torch.export does not trace.
    _on("export", r"(Found <class '|UserDefinedObjectVariable\()(?P<kind>[\w.]*Cache)\b")(
        "the model returns a {kind}, a cache that grows with each call; a program has fixed inputs and outputs",
        "build the model without it: `use_cache=False` in the configuration of a transformers model",
        "or with a cache of a fixed size in buffers of the model: `cache_implementation: static`",
    ),
    _on("export", r"(Found <class '|UserDefinedObjectVariable\()(?P<kind>[\w.]+)(?=('> in output|\) at output))")(
        "the model returns a {kind}, which torch.export cannot take apart into tensors",
        "return a tensor, or a tuple, list or dict of tensors",
        "or register the class next to where it is defined: torch.export.register_dataclass for a dataclass, "
        "torch.utils._pytree.register_pytree_node for others",
    ),
    _on(_TRACING, r"support the deepcopy protocol")(
        "the model keeps a tensor of an earlier call, as static caches and torch.nn.utils.weight_norm do, and torch "
        "cannot copy it",
        "set `strict: true` for the model",
        "or build it without: call torch.nn.utils.remove_weight_norm in the builder, or keep such tensors in "
        "buffers, written under torch.no_grad()",
    ),
    _on("export", r"\.numpy\(\) is not supported|Can't call numpy\(\)|tensor subclasses.*numpy")(
        "the model turns tensors into NumPy arrays, which torch.export does not trace without strict mode",
        "compute with torch in their place",
        "or set `strict: true` for the model, which knows many of NumPy's functions",
    ),
    _on("export", r"attributes? (?P<name>self\.[\w.]+(, self\.[\w.]+)*) (was|were) assigned during export")(
        "the model assigns tensors to {name} while it runs",
        "call `register_buffer` for it where the model is built, and write to it with `copy_`",
    ),
    _on("export", r"keeps state in attributes of Python \((?P<names>[^)]+)\)")(
        "the model keeps {names} from one call to the next; a file has only the values of its first call, and returns "
        "what eager returns after a first call again and again",
        "call `register_buffer` for it where the model is built: a list of tensors is one buffer, "
        "`self.past = torch.cat([self.past[1:], x])`, and a number is a tensor, also where it chooses between values",
        "or make it an input and an output, which the app passes on from call to call",
    ),
    _on("export", r"keeps state in (what is no attribute|buffers, in a way)")(
        "the model keeps something from one call to the next that torch.export takes for a constant",
        "keep it in a buffer of the module, and write to that with operators: `self.h.copy_(...)`, not `self.h.data`",
        "where nothing is kept, and random numbers of Python or NumPy are drawn, give the model these as inputs",
    ),
    _on("export", r"Exporting a ScriptModule is not supported|torch\.jit\.\w*Script\w*")(
        "the model is a TorchScript module, or has one in it",
        "build it from its Python class; torch.export does not trace torch.jit.script or torch.jit.trace",
    ),
    _on("export", r"of layout torch\.(?P<layout>sparse_\w+) cannot be stored")(
        "the model computes with sparse tensors ({layout}), for which ExecuTorch has no kernels",
        "compute with dense tensors, or leave that part outside of the model",
    ),
    _on("export", r"torch\.classes\.quantized\.\w*PackedParams")(
        "the model has modules that torch.ao.quantization has quantized, such as those of quantize_dynamic, and only "
        "eager can read their weights",
        "build the model in floating point, and let a recipe quantize it: xnnpack-int8-dynamic, or xnnpack-int8-static",
    ),
    # Sizes and numbers that depend on data.
    _on(_TRACING, r"argument 'size' failed to unpack the object.+got FakeTensor")(
        "a size is the value of a tensor, as those of packed sequences are (torch.nn.utils.rnn.pack_padded_sequence)",
        "give recurrent layers padded sequences, and mask or leave out what they return after the end of each",
        "or make the size a Python number with `.item()`, and bound it with `torch._check(...)`",
    ),
    _on(
        _TRACING,
        r"(Could not guard on|Could not extract specialized integer from) data-dependent expression "
        r"(?P<expression>.+?) \(unhinted",
    )(
        "a Python number or a size depends on the value of a tensor, and whether `{expression}` holds has to be known",
        "say what is always so with `torch._check(...)` next to where the number is made; a size `n` mostly "
        "needs `torch._check(n >= 0)` and `torch._check(n <= LARGEST)`",
        "or compute with tensors in place of Python numbers: torch.where, torch.cond, a mask",
    ),
    _on("", r"Pending unbacked symbols|_ViewSpec is incompatible")(
        "what torch.nonzero, torch.unique or torch.combinations returns has a size that depends on values, and is used "
        "in a way that torch does not lower",
        "where it is made of constants, compute it where the model is built, and call `register_buffer` for it",
        "or compute with masks in its place: torch.where",
    ),
    _on("edge compile", r"Cannot evaluate a finite upper bound for symbolic expression")(
        "a size depends on the value of a tensor and has no upper bound, so no memory can be planned for it",
        "say in the model how large it can be, where it is made: `torch._check(n <= LARGEST)`",
        "or, where it selects boxes, let the model return all with their scores, and let the application select",
    ),
    _on("verify", r"eager draws random numbers \((?P<operators>[^)]+)\)")(
        "the model draws random numbers each time it runs ({operators}), so its outputs are not those of another run",
        "where that is dropout, export in inference mode: `.eval()` before torch.export.export, and "
        "`training=self.training` in calls of torch.nn.functional.dropout",
        "otherwise give the model the random numbers as an input",
    ),
    _on("verify", r"set_inputs\(\).*0x10")(
        "an input is larger than the file has memory for",
        "give the dynamic dimension an upper bound that covers the example inputs",
    ),
    _on("", r"(?P<branch>\w+) might be aliasing the input or the output")(
        "a branch of torch.cond, or the body of another control flow operator ({branch}), returns what it was given",
        "return a copy from it: `x.clone()`",
    ),
    # Operators.
    _on("", r"UnsupportedOperatorException: (?P<operator>(aten|prims|torchvision)[\w.]+)")(
        "torch cannot tell what shape and dtype its operator {operator} returns: it has no fake kernel",
        "write the model without it, or let the model end before it, and let the application do the rest",
    ),
    _on(
        "",
        r"UnsupportedOperatorException: (?P<operator>[\w.]+)|"
        r"no fake impl registered for <CustomOpDef\((?P<name>[\w:]+)\)>",
    )(
        "the operator {operator}{name} has no fake kernel, which says what shape and dtype it returns",
        "register one where the operator is defined: a function under `@torch.library.register_fake(...)`",
    ),
    _on("compile", r"Missing out variants: \{(?P<operators>[^}]+)\}")(
        "ExecuTorch calls out variants only, and {operators} has none",
        "define one where the operator is defined: `NAME.out(..., *, Tensor(a!) out) -> Tensor(a!)`, and link "
        "a kernel of it into the application",
        "or write the model without the operator",
    ),
    _on("verify", r"it has no kernel for (?P<operators>[\w:., ]+)")(
        "no kernel of {operators} is linked into ExecuTorch's runtime here, and the recipe's backends left it",
        "write the model with operators that ExecuTorch has kernels for, or leave that part outside of it",
        "or use a target that takes the operator",
    ),
    _on("", r"torch\.complex\d+|'complex' object has no attribute|ComplexFloat|ComplexDouble")(
        "the model computes with complex numbers, for which ExecuTorch has neither kernels nor a dtype",
        "compute with real and imaginary parts as two real tensors (torch.view_as_real)",
        "or leave that part, such as a Fourier transform, outside of the model",
    ),
    _on("edge compile", r"'\w+': torch\.(?P<dtype>float8_\w+)")(
        "the model computes with {dtype}, for which ExecuTorch has no kernels",
        "use float32, float16 or bfloat16 in the model, and let the recipe quantize it",
    ),
    _on(
        "edge",
        r"Operator torch\._ops\.(?P<operator>aten\.(randn?|randint|randperm|bernoulli|normal|log_normal|uniform|"
        r"multinomial|poisson|exponential|geometric|cauchy|binomial|random|rrelu_with_noise|_sample_dirichlet|"
        r"_standard_gamma)(_like|_functional)?\.\S+) is not in Core ATen opset",
    )(
        "the model draws random numbers ({operator}), of which ExecuTorch has no kernel",
        "give the model the random numbers as an input, and let the application draw them",
        "or, where they are for training only, leave them out in inference mode: `if self.training:`",
    ),
    _on("edge", r"Operator torch\._ops\.(?P<operator>\S+) is not in Core ATen opset")(
        "{operator} is not among the operators that ExecuTorch lowers to, so it has no kernel of it",
        "write the model with other operators, or leave that part outside of it",
        "or, if a backend or a kernel of your own takes it, in the recipe: "
        "`edge: {{core_aten_ops_exception_list: [{operator}]}}`",
    ),
    _on("edge", r"taking Tensor inputs with mismatched dtypes")(
        "an operator gets tensors of several dtypes, which ExecuTorch's kernels do not take",
        "cast them to one dtype in the model, at the line in the message",
        "or, if the kernels that will run it do take them: `edge: {{check_ir_validity: false}}` in the recipe",
    ),
    _on(
        "verify",
        r"Expect input tensor to be 3-D or 4-D, but got, 5.*in operator (?P<operator>[\w:.]*convolution[\w.]*)",
        in_log=True,
    )(
        "the kernel of {operator} knows convolutions in one and two dimensions only",
        "compute the convolution as a sum of convolutions in two dimensions, one for each slice of the weight",
        "or use a target that takes the operator",
    ),
    _on("verify", r"Attempted to resize a (static|bounded) tensor.*in operator (?P<operator>[\w:.]+)", in_log=True)(
        "the kernel of {operator} makes an output of another shape or size than the program plans memory for",
        "look for the operator in the model, and write that line with other operators",
        "or use a target that takes the operator",
    ),
    _on("verify", r"tensor rank which is immutable.*in operator aten::squeeze_copy", in_log=True)(
        "`squeeze()` drops every dimension of size 1, also a dynamic one, and a file has outputs of a fixed rank",
        "name the dimensions to drop: `x.squeeze(-1)`",
        "or let the dynamic size begin with 2, where the model never gets fewer",
    ),
    _on("verify", r"KernelCall failed at instruction \S+ in operator (?P<operator>[\w:.]+): 0x12", in_log=True)(
        "the kernel of {operator} refused its arguments: ExecuTorch's portable kernels lack some of torch's cases",
        "write that part of the model in another way; the message says what the kernel expects",
        "or use a target that takes the operator",
    ),
    _on("verify", r"In function (?P<kernel>\w+)\(\), assert failed .*(Unhandled|dtype)", in_log=True)(
        "the kernel {kernel} does not know the dtype that it gets, and ends the process",
        "let the model compute in float32: call `.float()` on it in the builder",
    ),
    _on("verify", r"on inputs that a search has found")(
        "the file passes on its examples, and is wrong for another size, other values or a later call",
        "see whether another target is right there: then the operator is best left to that one",
        "where the model never gets such inputs, narrow its dynamic shapes, or do without `verify: {{search: ...}}`",
    ),
    _on("verify", r"execute\(\) failed with error 0x12")(
        "a kernel refused its arguments: ExecuTorch's portable kernels lack some of torch's cases, such as outputs "
        "whose size depends on data",
        "look for the kernel in the log, and write that part of the model in another way",
        "or use a target that takes the operator",
    ),
    _on(
        "verify",
        r"(?s)\A(?!.*(example|sample|drawn) \d+, output \d+: SQNR).*sequence \d+, call \d+, output \d+: SQNR",
        when="own state",
    )(
        "each method computes as eager does, and sequences of calls do not: every method of the file has its own copy "
        "of the model's buffers, so none sees what another one writes",
        "let the methods share them, in the recipe: `compile: {{share_mutable_buffers: true}}`",
    ),
    _on(
        "verify",
        r"output (?P<output>\d+), dimension [^:]+: \S+ dB(, all \S+)?; eager's are up to (?P<largest>[^,]+), those of "
        r"the whole output up to (?P<most>[^;\s]+)",
        when="quantized",
    )(
        "a part of output {output} has values up to {largest} next to others up to {most}, and is lost: integers of 8 "
        "bits have one scale for all of it",
        "return the parts as outputs of their own, and join them in the app",
        "or scale them to the same range in the model, such as boxes to shares of the image",
        "or leave the layer that makes the output in floating point: `quantize: {{exclude: [...]}}` in the recipe",
        "where the part does not matter, `verify: {{min_part_sqnr_db: null}}` in the recipe or the model",
    ),
    _on("verify", r"not compute what its quantized program computes")(
        "on random inputs, the backend computes something else than the quantized program, and calibration samples do "
        "not change that",
        _BISECT,
        _FLOAT,
    ),
    _on("verify", r"< (?P<bound>\S+) dB.*; its examples pass(?P<reached>( with \S+ dB)?)", when="quantized")(
        "the file passes on its examples{reached}, and misses the bound of {bound} dB on random inputs only: they have "
        "the examples' numbers in random order, which images, spectrograms and speech are not like",
        "where the model never gets inputs like these, leave them out, with `verify: {{drawn_inputs: 0}}` in "
        "the recipe or the model, and give several examples, with dynamic sizes also of several sizes",
        "where it does, `verify: {{drawn_inputs: 2}}` makes the message say which layers to leave in floating "
        "point, if half of them is enough",
        _BISECT,
    ),
    _on("verify", r"output \d+: SQNR (?P<found>-\S+|\d\.\d) dB < (?P<bound>\S+) dB", when="quantized")(
        "outputs of the file have little to do with eager's: {found} dB of {bound} dB",
        _BISECT,
        "where that is quantization, leave layers in floating point, with the message's `quantize: {{exclude: "
        "[...]}}`, or, where half of them is not enough, use computed scales, as in xnnpack-int8-dynamic",
    ),
    _on("verify", r"output \d+: SQNR (?P<found>-\S+|\d\.\d) dB < (?P<bound>\S+) dB")(
        "outputs of the file have little to do with eager's: {found} dB of {bound} dB",
        _BISECT,
    ),
    _on("verify", r"output \d+: SQNR (?P<found>\S+) dB < (?P<bound>\S+) dB.* smallest SQNR is (?P<least>-?\d+)")(
        "the file computes the same, but less exactly than the recipe asks for: {found} dB of {bound} dB",
        _BISECT,
        "or, if the results are good enough, lower the bound: `--set recipes.{recipe}.verify.min_sqnr_db={least}`, or "
        "`verify: {{min_sqnr_db: {least}}}` in the recipe or the model",
    ),
    # Layouts.
    _on("partition edge preprocess", r"Expected (?P<weight>\w+) to be NCHW in channels last reshape pass", in_log=True)(
        "the weight {weight} is channels-last in memory, which XNNPACK's passes do not take",
        "leave `.to(memory_format=torch.channels_last)` out of the builder: XNNPACK chooses layouts by itself",
        "where a checkpoint has such weights, make them contiguous after it is loaded",
    ),
    # Quantization.
    _on(
        "quantize",
        r"(?:Expecting input to have dtype torch\.float32, but got dtype: torch\.|layers compute in )(?P<dtype>\w+)",
    )(
        "the model computes in {dtype}, and PT2E quantizes float32 only",
        "let the model compute in float32: call `.float()` on it in the builder",
    ),
    _on("quantize", r"range of \[.+\] is not finite")(
        "a quantizer observed NaN or infinity while the model ran on its calibration data or examples",
        "give the model examples, or `calibration` samples, for which everything that it computes is finite",
    ),
    _on("quantize", r"finds no operator.*operators of branches and loops only")(
        "PT2E does not look into the branches of torch.cond and the bodies of loops, and the model's layers are there",
        "compute the layers before the branch, and let torch.where choose between their results",
        _FLOAT,
    ),
    _on("quantize", r"finds no operator.*with weights it has aten\.embedding\Z")(
        "the only weights of the model are tables of embeddings, which quantizers do not take",
        "quantize them with the `source_transforms` of the recipe xnnpack-int8-dynamic-embedding-int8 alone",
        _FLOAT,
    ),
    _on("quantize", r"finds no operator.*with weights it has (?P<operators>[\w., ]+)")(
        "of the operators with weights, the model has only those that this quantizer does not take: {operators}",
        "write them with torch.nn.Linear or a convolution, which quantizers take",
        _FLOAT,
    ),
    _on("quantize", r"finds no operator.*no operator with weights")(
        "the model has no operator with weights, so there is nothing that quantization would make smaller",
        _FLOAT.removeprefix("or "),
    ),
    # Inputs, outputs and state.
    _on("", r"Constant (?P<name>\S+) is mutated in the forward method")(
        "the model writes to the tensor {name}, which is neither a parameter nor a buffer",
        "call `register_buffer` for it where the model is built",
    ),
    _on("compile", r"graph_output_allocated not set")(
        "the method returns no tensor that it computes",
        "return a tensor; what is always the same can be a constant method",
    ),
    _on("", r"damaged program: a tensor has shape \((1?\d+, ){16,}")(
        "a tensor has more than 16 dimensions, the most that ExecuTorch's runtime knows",
        "write the model with fewer dimensions, for example by flattening some of them",
    ),
)


def known_causes(
    stage: str, message: str, log: str = "", circumstances: Collection[str] = (), recipe: str = ""
) -> tuple[Cause, ...]:
    """The first entry that applies to a stage's error message and the end of its log, if any."""
    for cause in CAUSES:
        if (cause.stages and stage not in cause.stages) or not (cause.when is None or cause.when in circumstances):
            continue
        if match := re.search(cause.pattern, message) or (cause.in_log and re.search(cause.pattern, log)):
            groups = {"recipe": recipe or "RECIPE", **match.groupdict("")}
            remedies = tuple(remedy.format(**groups) for remedy in cause.remedies)
            return (Cause("known cause", cause.problem.format(**groups), remedies),)
    return ()


def add_known_causes(stage: str, error: Exception, circumstances: Collection[str] = (), recipe: str = "") -> None:
    """Adds the known cause of a stage's failure to the error, unless a diagnosis has added some."""
    if isinstance(error, PteforgeError):
        log = error.log_tail if isinstance(error, StageError) else ""
        add_findings(error, known_causes(stage, str(error), log, circumstances, recipe))


def awaits_diagnosis(stage: str, error: Exception) -> bool:
    """Whether a diagnosis of a stage's failure follows, which says more than the table."""
    return stage == "export" and isinstance(error, PteforgeError) and is_worth_diagnosing(error)


def is_worth_diagnosing(error: PteforgeError) -> bool:
    """Whether an export may have failed because of how torch.export traces the model, and not its builder or inputs."""
    if isinstance(error, CodeChanged):
        return False
    if isinstance(error, StageFailed) and not error.bad_input:
        return not (error.lost_object or re.search(_NO_SPACE, str(error)))
    about_shapes = isinstance(error, StageFailed | SourceError) and "with its dynamic shapes" in str(error)
    return about_shapes and bool(_REFUSED.search(str(error)))
