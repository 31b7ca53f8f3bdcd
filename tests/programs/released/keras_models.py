"""Models of keras-hub on Keras' torch back end, with the weights of transformers' model put in by keras-hub's own scripts.

Keras calls its layers itself, so that torch knows of one module alone: the one that is written around the backbone here."""

import os

import language_models
import other_language_models
import ported_encoders
import torch


class Loader:
    """What the scripts read weights by."""

    def __init__(self, given):
        self.given = given

    def port_weight(self, keras_variable, hf_weight_key, hook_fn=None):
        value = self.given[hf_weight_key].numpy()
        keras_variable.assign(hook_fn(value, list(keras_variable.shape)) if hook_fn else value)

    def get_tensor(self, hf_weight_key):
        return self.given[hf_weight_key].numpy()

    def get_prefixed_key(self, hf_weight_key, dict_like):
        return hf_weight_key


class Around(torch.nn.Module):
    def __init__(self, backbone, inputs):
        super().__init__()
        self.backbone, self.inputs = backbone, inputs
        for variable in backbone.trainable_variables:
            self.register_parameter(variable.path.replace("/", "_"), variable.value)

    def forward(self, *given):
        out = self.backbone(self.inputs(*given))
        if isinstance(out, dict):
            return out["sequence_output"]
        return self.backbone.token_embedding(out, reverse=True)


def tokens_alone(tokens):
    return {"token_ids": tokens, "padding_mask": torch.ones_like(tokens)}


def build(family, changes, attention):
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.config.set_floatx("float64" if torch.get_default_dtype() == torch.float64 else "float32")
    common = dict(vocabulary_size=96, num_layers=3, hidden_dim=64)
    grouped = dict(common, num_query_heads=4, num_key_value_heads=2, layer_norm_epsilon=1e-5)
    inputs, config = tokens_alone, {}
    if family == "llama":
        from keras_hub.src.models.llama3.llama3_backbone import Llama3Backbone as Kind
        from keras_hub.src.utils.transformers import convert_llama3 as script

        own, given = dict(grouped, intermediate_dim=112), language_models.published("llama")
    elif family == "gpt2":
        from keras_hub.src.models.gpt2.gpt2_backbone import GPT2Backbone as Kind
        from keras_hub.src.utils.transformers import convert_gpt2 as script

        own, config = dict(common, num_heads=4, intermediate_dim=256, dropout=0.0, max_sequence_length=64), dict(n_embd=64)
        given = {name.removeprefix("transformer."): value for name, value in language_models.published("gpt2").items()}
    elif family == "qwen2moe":
        from keras_hub.src.models.qwen_moe.qwen_moe_backbone import QwenMoeBackbone as Kind
        from keras_hub.src.utils.transformers import convert_qwen_moe as script

        own = dict(grouped, intermediate_dim=112, moe_intermediate_dim=32, shared_expert_intermediate_dim=48, num_experts=4, top_k=2)
        own.update(norm_top_k_prob=False, decoder_sparse_step=1, layer_norm_epsilon=1e-5, rope_max_wavelength=10000, tie_word_embeddings=False)
        given = other_language_models.one_by_one(other_language_models.published("qwen2moe"))
    else:
        from keras_hub.src.models.bert.bert_backbone import BertBackbone as Kind
        from keras_hub.src.utils.transformers import convert_bert as script

        own = dict(common, num_heads=4, intermediate_dim=128, dropout=0.0, max_sequence_length=32)
        given = ported_encoders.published_encoder()

        def inputs(batch):
            return {"token_ids": batch.tokens, "padding_mask": batch.mask, "segment_ids": batch.types}

    model = Around(Kind(**{**own, **changes}), inputs)
    script.convert_weights(model.backbone, Loader(given), config)
    model.scores_of = lambda given: model(given)
    return model


BUILDERS = {(family, "keras"): build for family in ("llama", "gpt2", "qwen2moe", "bertencoder")}
