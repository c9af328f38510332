"""Recipes: shipped ones, the zoo's own ones, ``extends``, files and functions; options have ExecuTorch's defaults."""

import ast
import importlib.util
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from pteforge.configs import CompileOptions, EdgeOptions, preset_names
from pteforge.configs.quantize import ENCODERS, LayerQuantization, TorchaoTransform
from pteforge.configs.recipe import Output
from pteforge.configs.recipe_lookup import call_recipe, load_preset, load_recipe
from pteforge.configs.sources import LayerFields
from pteforge.configs.verification import Verification, VerifyBounds
from pteforge.errors import ConfigError

BACKEND_CONFIG = "exir/capture/_config.py:ExecutorchBackendConfig"
MEMORY_PLANNING = "exir/passes/memory_planning_pass.py:MemoryPlanningPass"
DEVICES = "exir/passes/propagate_device_config.py:PropagateDeviceConfig"

# Our options that are arguments or fields of passes.
PASSES = {
    MEMORY_PLANNING: {
        *("alloc_graph_input", "alloc_graph_output", "alloc_mutable_buffers", "share_mutable_buffers"),
        "allow_lifetime_and_storage_overlap",
    },
    DEVICES: {"skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs"},
    "exir/passes/__init__.py:ToOutVarPass": {"ignore_to_out_var_failure"},
}
# Options that name something for which upstream's field takes an object, or that are none of its config's.
BY_OTHER_NAMES = {"memory_planning_algo", "tensor_alignment", "sym_shape_eval", "generate_etrecord"}
# Upstream's fields that take an object, which is made from options.
OBJECTS = {"memory_planning_pass", "propagate_device_config", "sym_shape_eval_pass", "to_out_var_pass"}
NOT_OURS = {
    "passes",  # run over a program that is about to be emitted; passes of a recipe run on the edge program
    "dynamic_memory_planning_mode",  # nobody reads it
    "external_mutable_weights",  # for training on the device: no stage exports programs with gradients
}
EDGE = {
    "check_ir_validity": "_check_ir_validity",
    "skip_dim_order": "_skip_dim_order",
    "core_aten_ops_exception_list": "_core_aten_ops_exception_list",
    "preserve_operators": "preserve_ops",
}


def _upstream_defaults(place):
    """Fields of a class of the installed ExecuTorch, or its `__init__`'s arguments, read without importing it."""
    file, name = place.split(":")
    root = importlib.util.find_spec("executorch").submodule_search_locations[0]
    tree = ast.parse(Path(root, file).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names = [argument.arg for argument in node.args.args[-len(node.args.defaults) :]]
            return dict(zip(names, node.args.defaults, strict=True))
    return {node.target.id: node.value for node in found.body if isinstance(node, ast.AnnAssign)}


def test_every_field_of_the_backend_config_is_decided_on():
    """A field that upstream adds is noticed: it becomes an option, or is left out on purpose."""
    ours = set(CompileOptions.model_fields) - BY_OTHER_NAMES - set.union(*PASSES.values())
    assert set(_upstream_defaults(BACKEND_CONFIG)) == ours | OBJECTS | NOT_OURS | {"external_constants"}


def test_compile_options_are_those_of_the_backend_config():
    """Leaving out an option, also one of a pass, means the same on both sides; by default weights are in the file."""
    fields = _upstream_defaults(BACKEND_CONFIG)
    ours = {name: getattr(CompileOptions(), name) for name in CompileOptions.model_fields.keys() & fields.keys()}
    del ours["reinplace_extra_ops"]  # a set of objects there
    assert {name: ast.literal_eval(fields[name]) for name in ours} == ours
    assert ast.literal_eval(fields["external_constants"]) is Output().external_data is False
    for place in (MEMORY_PLANNING, DEVICES):
        defaults = _upstream_defaults(place)
        for name in PASSES[place]:
            assert ast.literal_eval(defaults[name]) is getattr(CompileOptions(), name)


def test_patterns_of_external_weights():
    """They are for plain files, whose payload is split; the payloads of fat files are split when they are packed."""
    assert Output(external_data=("*.lora_*",)).split_weights == ("*.lora_*",)
    assert Output(external_data=True).split_weights is True
    assert Output(external_data=True, form="fat").split_weights is False
    with pytest.raises(ValueError, match="patterns with `form: plain` only"):
        Output(external_data=("*.lora_*",), form="fat")
    with pytest.raises(ValueError, match="at least 1 item"):
        Output(external_data=())


def test_edge_options_are_those_of_the_edge_config():
    """Each field of EdgeCompileConfig is an option; switches have the same defaults, lists are empty."""
    fields = _upstream_defaults("exir/capture/_config.py:EdgeCompileConfig")
    assert set(fields) == set(EDGE.values())
    for ours, theirs in EDGE.items():
        default = getattr(EdgeOptions(), ours)
        assert default == () or ast.literal_eval(fields[theirs]) is default


MODELS = "models: {net: {source: 'p:net', recipes: [mine]}}\n"


TARGETS = dict.fromkeys(("cortex-m4", "cortex-m33", "cortex-m55"), "cortex_m")  # where names do not begin with them


@pytest.mark.parametrize("name", preset_names())
def test_shipped_recipes(name):
    """Each shipped recipe says what it is for, and its name says its target and whether it quantizes."""
    recipe = load_preset(name).recipe
    fallback = ["portable"] if recipe.output.form == "fat" else []
    assert [specialization.target for specialization in recipe.specializations] == [
        TARGETS.get(name, name.split("-")[0]),
        *fallback,
    ]
    assert recipe.description
    assert (recipe.verify.bounds == VerifyBounds()) is (name in {"portable-fp32", "xnnpack-fp32"})
    assert (recipe.quantize is None and not recipe.transforms) is name.endswith(("fp32", "fp16"))


LINEAR = TorchaoTransform(
    torchao="int8_dynamic_activation_intx_weight",
    params={"weight_dtype": "int4", "weight_granularity": {"per_group": 32}},
    otherwise={"weight_dtype": "int8", "weight_granularity": {"per_axis": 0}},
)
EMBEDDING = TorchaoTransform(
    torchao="intx_weight_only",
    layers=["embedding"],
    exclude=["*position*", "*pos_emb*", "*wpe*"],
    params={"weight_dtype": "int8", "granularity": {"per_axis": 0}},
)


def test_layers_are_short_for_transforms():
    """Embeddings come first; encoders have a scheme of their own or none; transforms that are written win."""
    recipe = load_preset("xnnpack-llm-8da4w-embedding-int8").recipe
    assert recipe.transforms == (EMBEDDING, LINEAR)
    assert load_preset("xnnpack-llm-8da8w").recipe.transforms[0].params["weight_granularity"] == {"per_axis": 0}
    fields = LayerFields(group_size=64, embedding=None, encoder="8da8w")
    decoder, encoder = recipe.with_layers(fields).transforms
    assert (decoder.exclude, decoder.params["weight_granularity"]) == (encoder.filter, {"per_group": 64})
    assert encoder.params["weight_dtype"] == "int8"
    (decoder,) = recipe.with_layers(LayerFields(embedding=None, encoder="float")).transforms
    assert (decoder.exclude, decoder.params) == (encoder.filter, LINEAR.params)
    assert LayerQuantization(encoder="8da8w").transforms == (encoder,)
    assert LayerQuantization(linear="4w").transforms[0].params == {
        "weight_dtype": "int4",
        "granularity": {"per_group": 32},
    }
    even, scaled, *_ = LayerQuantization(linear="8da8w", equalize=["rotate", "awq"]).transforms
    assert (even.equalize, scaled.equalize, scaled.bits) == ("rotate", "awq", 8)
    assert LayerQuantization(linear="8da4w", equalize=["awq"], group_size=64).transforms[0].group_size == 64
    with pytest.raises(ValueError, match="`equalize` is for layers that are quantized"):
        LayerQuantization(equalize=["awq"])
    table, rounded = LayerQuantization(linear="8da4w", embedding="int4", rounding="gptq").transforms
    assert (table.rounding, rounded.rounding) == ("nearest", "gptq")
    with pytest.raises(ValueError, match=r"`rounding` is for .*none are quantized"):
        LayerQuantization(embedding="int4", rounding="gptq")
    written = recipe.model_copy(update={"source_transforms": (EMBEDDING,)})
    assert written.with_layers(fields).transforms == (EMBEDDING,)
    with pytest.raises(ValueError, match="`group_size` is for int4 weights"):
        load_preset("xnnpack-llm-8da8w").recipe.with_layers(fields.model_copy(update={"encoder": None}))
    with pytest.raises(ValueError, match="`embedding_group_size` needs `embedding`"):
        LayerQuantization(linear="8da4w", embedding_group_size=64)


@pytest.mark.parametrize(
    ("name", "encodes"),
    [
        ("model.model.encoder.layers.0.fc1", True),  # Whisper
        ("model.encoder.block.0.layer.0.SelfAttention.q", True),  # T5
        ("model.vision_tower.vision_model.encoder.layers.0.mlp.fc1", True),
        ("model.visual.blocks.0.mlp.fc1", True),
        ("audio_tower.layers.0.fc1", True),
        ("model.model.decoder.layers.0.encoder_attn.k_proj", False),
        ("model.language_model.layers.0.mlp.up_proj", False),
        ("lm_head", False),
    ],
)
def test_names_of_encoders(name, encodes):
    """Decoders' attention to an encoder is the decoder's."""
    assert any(fnmatchcase(name, pattern) for pattern in ENCODERS) is encodes


def test_extends(load):
    """A recipe starts from the one it extends: mappings merge, lists replace, through several steps."""
    recipes = load(
        """\
        version: 1
        models: {net: {source: "p:net", recipes: [xnnpack-fp32, mine, finer, whole]}}
        recipes:
          xnnpack-fp32: {extends: xnnpack-fp32, compile: {segment_alignment: 64}}
          finer: {extends: xnnpack-fp32, compile: {delegate_alignment: 32}}
          middle:
            extends: xnnpack-fp32
            compile: {segment_alignment: 4096, delegate_alignment: 64}
            edge: {preserve_operators: [aten.linear.default]}
            verify: {max_abs_error: 0.1}
          mine:
            extends: middle
            description: my own
            compile: {delegate_alignment: null}
            edge: {preserve_operators: [aten.silu.default]}
          base: {verify: {min_sqnr_db: 50}}
          whole: {extends: base, specializations: [{target: portable}]}
          unused: {specializations: [{target: portable}]}
        """
    ).zoo.recipes
    mine = recipes["mine"]
    assert mine.description == "my own"
    assert [specialization.target for specialization in mine.specializations] == ["xnnpack"]
    assert mine.compile == CompileOptions(segment_alignment=4096, delegate_alignment=None)
    assert mine.edge.preserve_operators == ("aten.silu.default",)
    assert mine.verify == Verification(max_abs_error=0.1)
    assert recipes["xnnpack-fp32"].compile == CompileOptions(segment_alignment=64)
    assert recipes["finer"].compile == CompileOptions(segment_alignment=64, delegate_alignment=32)
    assert recipes["whole"].verify.min_sqnr_db == 50
    assert "unused" in recipes


PORTABLE = "specializations: [{target: portable}]"


@pytest.mark.parametrize(
    ("used", "recipes", "problem"),
    [
        # A recipe that only serves as a base may lack specializations; one that a model uses may not.
        ("mine, base", "base: {verify: {min_sqnr_db: 50}}, mine: {extends: base, %s}",
         "3:11: recipes.base.specializations: is missing; it has to be given"),
        # However many recipes extend a base, a mistake in it is reported once, where it is.
        ("mine", "base: {compile: {segment_alignment: 100}, %s}, mine: {extends: base}, other: {extends: base}",
         "3:28: recipes.base.compile.segment_alignment: must be a power of two"),
        # A recipe that excludes models which the zoo does not have, or gives no reason.
        ("mine", "mine: {not_for: {nett: slow}, %s}", "3:28: recipes.mine.not_for.nett: no model matches 'nett'; did"),
        ("mine", "mine: {not_for: {'r*': slow}, %s}", "3:28: recipes.mine.not_for.r*: no model matches 'r*'; known h"),
        ("mine", "mine: {not_for: {net: ''}, %s}", "3:28: recipes.mine.not_for.net: "),
        ("mine", "mine: {not_for: [net], %s}", "3:18: recipes.mine.not_for: must be a mapping"),
    ],
)  # fmt: skip
def test_mistakes_in_bases_and_exclusions(refused, used, recipes, problem):
    """Each is one message, with the place where something has to change."""
    models = f"models: {{net: {{source: 'p:net', recipes: [{used}]}}}}\n"
    refused(f"zoo.yaml:{problem}", zoo=f"version: 1\n{models}recipes: {{{recipes % PORTABLE}}}\n")


FAT = "output: {form: fat}, specializations"


@pytest.mark.parametrize(
    ("recipe", "field", "said"),
    [
        ("extends: other}, other: {extends: mine", "other.extends", "in a circle: mine -> other -> mine"),
        ("extends: nope", "mine.extends", "there is no recipe 'nope'; known here: "),
        ("extends: mine", "mine.extends", "there is no recipe 'mine'"),
        ("extends: [a]", "mine.extends", "must be the name of one recipe"),
        ("function: nowhere:paged", "mine.function", "nowhere:paged cannot be imported: ModuleNotFoundError"),
        ("extend: a, specializations: [{target: t}]", "mine.extend", "unknown key 'extend'; did you mean 'extends'?"),
        ("specializations: []", "mine.specializations", "is empty; a recipe needs at least one"),
        ("specializations: [{target: a}, {target: b}]", "mine.specializations", "there are 2 (a, b); write one rec"),
        ("specializations: [{}]", "mine.specializations[0].target", "is missing"),
        ("specializations: [portable]", "mine.specializations[0]", "must be a mapping"),
        (f"{FAT}: [{{target: a}}, {{target: a}}]", "mine.specializations", "'a' is there more than once; give each"),
        (FAT + ": [{target: a}], compile: {share_mutable_buffers: true}", "mine", "each method of a fat file is a"),
        (FAT + ": [{target: a, required: false}]", "mine.specializations", "it cannot be `required: false`"),
        ("extends: xnnpack-fp32, output: {self_check: {}}", "mine.output", "`self_check` needs `form: fat`"),
        (
            "extends: xnnpack-fp32, output: {form: fat, self_check: {repeats: 0}}",
            "mine.output.self_check.repeats",
            "greater than or equal to 1 (found 0)",
        ),
        (
            "extends: xnnpack-fp32, output: {form: fat, self_check: {tolerance: 2.0}}",
            "mine.output.self_check.tolerance",
            "less than or equal to 1 (found 2.0)",
        ),
        (
            "extends: xnnpack-fp32, output: {form: thin}",
            "mine.output.form",
            "'plain', 'fat' or 'header' (found 'thin')",
        ),
        ("extends: xnnpack-fp32, compile: {delegate_alignment: 0}", "mine.compile.delegate_alignment", "power of two"),
        ("extends: xnnpack-fp32, verify: {drawn_inputs: -1}", "mine.verify.drawn_inputs", "equal to 0 (found -1)"),
        (
            "extends: xnnpack-fp32, verify: {search: {seconds: 0}}",
            "mine.verify.search.seconds",
            "greater than 0 (found 0)",
        ),
        ("extends: xnnpack-fp32, verify: {search: {seed: -1}}", "mine.verify.search.seed", "equal to 0 (found -1)"),
        ("extends: xnnpack-fp32, verify: {search: 20}", "mine.verify.search", "(found 20)"),
        ("extends: xnnpack-fp32, verify: {search: {cases: 9}}", "mine.verify.search.cases", ""),
        (
            "extends: xnnpack-int8-static, quantize: {search: {drop: 0.1, keep: 0.9}}",
            "mine.quantize.search",
            "has `keep` as well as `drop`",
        ),
        (
            "extends: xnnpack-int8-static, quantize: {search: {budget: soon}}",
            "mine.quantize.search.budget",
            "'soon'",
        ),
        (
            "extends: xnnpack-fp32, quantize: {quantizers: [{quantizer: a}], search: {variants: [{options: {b: c}}]}}",
            "mine.quantize",
            "those of one `quantizer`",
        ),
        ("extends: xnnpack-fp32, edge: {passe: []}", "mine.edge.passe", "unknown key 'passe'; did you mean 'passes'?"),
    ],
)
def test_mistakes_in_recipes(refused, recipe, field, said):
    """Each mistake in a recipe has one message, and it names the recipe."""
    zoo = f"version: 1\n{MODELS}recipes: {{mine: {{{recipe}}}}}\n"
    refused("zoo.yaml:3:", f" recipes.{field}: ", said, zoo=zoo)


def test_models_that_a_recipe_is_not_for(load):
    """The first glob that matches a model's name gives the reason; those of the extended recipe come first."""
    base = "base: {specializations: [{target: portable}], not_for: {net: no such kernel}}"
    mine = "mine: {extends: base, not_for: {'n*': no memory}}"
    recipe = load(f"version: 1\n{MODELS}recipes: {{{base}, {mine}}}\n").zoo.recipes["mine"]
    assert recipe.not_for == {"net": "no such kernel", "n*": "no memory"}
    reasons = [recipe.reason_against(model) for model in ("net", "nets", "other")]
    assert reasons == ["no such kernel", "no memory", None]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("decode: {delegate: false, target: xnnpack}", "excludes `target` and `options`"),
        ("two words: {}", "'two words' is not a method name"),
        ("decode: {delgate: false}", "unknown key 'delgate'; did you mean 'delegate'?"),
    ],
)
def test_method_options(load, refused, options, problem):
    """A method has options of its own; contradictions and unknown names are errors."""
    zoo = f"version: 1\n{MODELS}recipes: {{mine: {{specializations: [{{target: xnnpack, methods: {{%s}}}}]}}}}\n"
    own = "decode: {delegate: false, edge: {skip_dim_order: true}, alloc_graph_input: false}"
    (made,) = load(zoo % own).zoo.recipes["mine"].specializations
    assert made.methods["decode"].edge == EdgeOptions(skip_dim_order=True)
    assert (made.methods["decode"].alloc_graph_input, made.methods["decode"].alloc_graph_output) == (False, None)
    refused("zoo.yaml:3:", problem, zoo=zoo % options)


FUNCTIONS = """
from pteforge.configs import CompileOptions, Recipe, Specialization

def paged(alignment=4096):
    return Recipe(
        specializations=(Specialization(target="xnnpack"),), compile=CompileOptions(segment_alignment=alignment)
    )

def printing():
    print("hello")
    return paged()

def broken():
    raise KeyError("nothing")

def wrong():
    return {}
"""
BY_FUNCTION = """
version: 1
models: {net: {source: "nets:build", recipes: [mine]}}
recipes: {mine: {function: "recipe_functions:paged", %s}}
"""


@pytest.fixture
def functions(tmp_path) -> Path:
    """A file of functions next to the files of the zoo."""
    path = tmp_path / "recipe_functions.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.mark.usefixtures("functions")
def test_a_function_makes_the_recipe(load):
    """The function returns the recipe; other keys are merged over it, an extended recipe lies below it."""
    recipe = load(BY_FUNCTION % "kwargs: {alignment: 256}, compile: {delegate_alignment: 32}").zoo.recipes["mine"]
    assert [specialization.target for specialization in recipe.specializations] == ["xnnpack"]
    assert (recipe.compile.segment_alignment, recipe.compile.delegate_alignment) == (256, 32)
    recipe = load(BY_FUNCTION % "extends: xnnpack-int8-static").zoo.recipes["mine"]
    assert recipe.quantize == load_preset("xnnpack-int8-static").recipe.quantize
    assert recipe.compile.segment_alignment == 4096


def test_code_is_read_again(load, functions):
    """The module belongs to one reading: nothing stays loaded, so the next reading sees a change of the file."""
    assert load(BY_FUNCTION % "").zoo.recipes["mine"].compile.segment_alignment == 4096
    assert "recipe_functions" not in sys.modules
    functions.write_text(FUNCTIONS.replace("4096", "65536"))
    assert load(BY_FUNCTION % "").zoo.recipes["mine"].compile.segment_alignment == 65536


@pytest.mark.usefixtures("functions")
def test_a_recipe_file(tmp_path):
    """A file with one recipe finds its function next to it, and can extend the shipped recipe of its own name."""
    (tmp_path / "small.yaml").write_text("function: recipe_functions:paged\nkwargs: {alignment: 64}\n")
    loaded = load_recipe(tmp_path / "small.yaml")
    assert (loaded.name, loaded.recipe.compile.segment_alignment) == ("small", 64)
    (tmp_path / "xnnpack-fp32.yaml").write_text("extends: xnnpack-fp32\nverify: {min_sqnr_db: 100}\n")
    extended = load_recipe(tmp_path / "xnnpack-fp32.yaml").recipe
    assert extended.verify.min_sqnr_db == 100
    assert extended.specializations == load_preset("xnnpack-fp32").recipe.specializations


def test_an_unknown_name():
    """A name that is close to a shipped one is suggested."""
    for name, problem in (("xnnpack-fp31", "; did you mean 'xnnpack-fp32'"), ("../presets/portable-fp32", "")):
        with pytest.raises(ConfigError, match=f"there is no recipe '{name}'{problem}"):
            load_preset(name)


PAGED = "function: recipe_functions:paged\n"


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a recipe is a mapping"),
        ("- target: xnnpack\n", "a recipe is a mapping"),
        ("specializations: [{target: xnnpack}]\nedgy: {}\n", "mine.yaml:2:1: edgy: unknown key 'edgy'"),
        ("extends: nothing\n", "mine.yaml:1:1: extends: there is no recipe 'nothing'"),
        ("extends: mine\n", "recipes extend each other in a circle|there is no recipe 'mine'"),
        ("a: [\n", "mine.yaml:"),
        ("function: nowhere:paged", "mine.yaml:1:.*nowhere:paged cannot be imported: ModuleNotFoundError"),
        ("function: recipe_functions:page", "recipe_functions:page cannot be imported: AttributeError"),
        ("function: recipe_functions:broken", "mine.yaml:1:.*recipe_functions:broken failed: KeyError"),
        ("function: recipe_functions:wrong", "recipe_functions:wrong returned dict; it must return"),
        (PAGED + "kwargs: {size: 1}", "recipe_functions:paged failed: TypeError"),
        ("function: recipe_functions", "mine.yaml:1:.*: 'recipe_functions' is neither"),
        ("function: 3", "mine.yaml:1:.*function.*must be package.module:name of a function"),
        (PAGED + "kwargs: 3", "mine.yaml:2:.*kwargs.*must be a mapping"),
    ],
)
def test_mistakes_in_files(tmp_path, text, problem):
    """A mistake in a recipe, or in the function that makes it, is reported with file, line, column and field."""
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_recipe(tmp_path / "mine.yaml")


def test_functions_that_print(tmp_path, capsys):
    """What a recipe's function prints goes to stderr, so that stdout stays one JSON document."""
    (tmp_path / "printing_functions.py").write_text(FUNCTIONS)
    assert call_recipe("printing_functions:printing", {}, (tmp_path,)).specializations
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "hello\n")
