"""The models that make_families.py makes, a row each: classes and configuration of transformers, and what it exercises."""
import dataclasses

VOCABULARY = 269
TOKENS = 24
PROMPT = 8

SLIDING, FULL = "sliding_attention", "full_attention"
IDS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
PLAIN = dict(IDS, vocab_size=VOCABULARY, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=6,
             max_position_embeddings=64)
GQA = dict(PLAIN, num_key_value_heads=2)
WIDE = dict(GQA, num_attention_heads=3, num_key_value_heads=1, head_dim=20)  # 3 * 20 is not 48
GPT = dict(IDS, vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=3, n_positions=64)
EXPERTS = dict(num_experts_per_tok=2, num_local_experts=5)
ENCODER = dict(PLAIN, hidden_size=48, num_attention_heads=3)
HEADED = dict(ENCODER, vocab_size=61, hidden_size=24, intermediate_size=24, num_hidden_layers=1)  # small files
VISION = dict(hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=3, image_size=20, patch_size=5)
TEXT_TOWER = dict(vocab_size=VOCABULARY, hidden_size=36, intermediate_size=56, num_hidden_layers=2, num_attention_heads=3,
                  max_position_embeddings=TOKENS)


@dataclasses.dataclass
class Family:
    """One folder. `exercises` is what the README's table says of it."""
    name: str
    model: str  # class of transformers
    config: str  # class of transformers
    values: dict
    exercises: str
    inputs: str = "decoder"  # a function of INPUTS
    dtype: str = "bfloat16"
    attention: str = "eager"
    prompt: int = PROMPT  # tokens of the greedy prompt, 0: no greedy continuation
    seed: int = 0


def lm(name, stem, values, exercises, **more):
    """A decoder whose classes are STEMForCausalLM and STEMConfig."""
    config = more.pop("config", stem + "Config")
    return Family(name, more.pop("model", stem + "ForCausalLM"), config, values, exercises, **more)


def rope(kind, **more):
    return dict(rope_type=kind, rope_theta=more.pop("rope_theta", 10000.0), **more)


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
SHORT_FACTOR, LONG_FACTOR = [1.0, 1.1, 1.3, 1.7], [1.5, 2.25, 3.0, 5.5]
LONG_ROPE = dict(rope_parameters=rope("longrope", short_factor=SHORT_FACTOR, long_factor=LONG_FACTOR))
WINDOW = dict(sliding_window=7)
PHI3 = dict(PLAIN, num_key_value_heads=6)
FALCON = dict(IDS, vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=64)
DEEPSEEK = dict(PLAIN, num_attention_heads=3, num_key_value_heads=3, kv_lora_rank=20, qk_nope_head_dim=10, qk_rope_head_dim=6,
                v_head_dim=14, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=28,
                first_k_dense_replace=1)
GROUPS = dict(n_group=3, topk_group=2)
MOE = dict(GQA, moe_intermediate_size=28, num_experts_per_tok=2)

DECODERS = [
    lm("gpt2", "GPT2", GPT, "learned positions, Conv1D weights [in, out], fused c_attn, tied head", model="GPT2LMHeadModel",
       dtype="float32"),
    lm("gpt2-scaled", "GPT2", dict(GPT, scale_attn_by_inverse_layer_idx=True, n_inner=56, activation_function="relu",
                                   tie_word_embeddings=False),
       "scale / (layer + 1), n_inner, relu, own head", model="GPT2LMHeadModel"),
    lm("opt", "OPT", dict(PLAIN, ffn_dim=88, pad_token_id=1), "positions from 2, relu, biases, tied head"),
    lm("opt-350m", "OPT", dict(PLAIN, ffn_dim=88, pad_token_id=1, do_layer_norm_before=False, word_embed_proj_dim=20),
       "norms after the sum, no last norm, projections of the embedding in and out"),
    lm("gpt_neo", "GPTNeo", dict(IDS, vocab_size=VOCABULARY, hidden_size=48, num_layers=2, num_heads=3, intermediate_size=88,
                                 attention_types=[[["global", "local"], 1]], window_size=5, max_position_embeddings=64),
       "scores not scaled, every other layer a window, no bias of q, k and v"),
    lm("gptj", "GPTJ", dict(GPT, rotary_dim=6, n_inner=88),
       "interleaved rotation of the first 6 of 16, one norm for attention and mlp, head with a bias"),
    lm("phi", "Phi", PLAIN, "rotation of half the head, one norm for attention and mlp, biases everywhere, head with a bias"),
    lm("phi-qknorm", "Phi", dict(GQA, qk_layernorm=True), "LayerNorm of each q and k head, GQA"),
    lm("falcon-7b", "Falcon", FALCON, "one kv head fused last, one norm for attention and mlp, no biases"),
    lm("falcon-40b", "Falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=88),
       "q, k and v fused by groups, a norm each for attention and mlp"),
    lm("falcon-11b", "Falcon", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
                                    tie_word_embeddings=False), "the same with one norm, own head"),
    lm("falcon-rw", "Falcon", dict(FALCON, multi_query=False, parallel_attn=False, alibi=True, bias=True),
       "alibi (rounded to bf16, of 6 heads), q, k and v fused by heads, biases, attention before mlp; sdpa, since eager "
       "attention of transformers 5.17 adds alibi twice", attention="sdpa"),
    lm("bloom", "Bloom", dict(IDS, vocab_size=VOCABULARY, hidden_size=48, n_layer=2, n_head=6),
       "alibi of 6 heads, norm of the embedding, q, k and v fused by heads"),
    lm("bloom-post", "Bloom", dict(IDS, vocab_size=VOCABULARY, hidden_size=48, n_layer=2, n_head=6,
                                   apply_residual_connection_post_layernorm=True), "the sum takes the normed value"),
    lm("mpt", "Mpt", dict(IDS, vocab_size=VOCABULARY, d_model=48, n_heads=6, n_layers=2, max_seq_len=64),
       "alibi of 6 heads (other order of slopes), fused Wqkv, norms without bias"),
    lm("mpt-clip", "Mpt", dict(IDS, vocab_size=VOCABULARY, d_model=48, n_heads=6, n_layers=2, max_seq_len=64,
                               attn_config=dict(clip_qkv=0.9, softmax_scale=0.25)),
       "q, k and v clipped, a scale of its own"),
    lm("starcoder2", "Starcoder2", dict(GQA, **WINDOW), "LayerNorm, biases, window, mlp of two products"),
    lm("stablelm", "StableLm", dict(GQA, use_qkv_bias=True), "LayerNorm, gated mlp, rotation of a quarter, biases of q, k, v"),
    lm("stablelm-parallel", "StableLm", dict(GQA, use_parallel_residual=True, qk_layernorm=True),
       "parallel residual of one norm, a LayerNorm of its own for each head of q and k"),
    lm("gemma", "Gemma", dict(WIDE), "norm times 1 + w, embedding times sqrt(hidden), gelu tanh, head_dim, one kv head"),
    lm("gemma2", "Gemma2", dict(WIDE, **WINDOW, query_pre_attn_scalar=12, attn_logit_softcapping=3.0,
                                final_logit_softcapping=5.0), "four norms, soft caps of scores and logits, windows in turn"),
    lm("gemma3_text", "Gemma3", dict(WIDE, **WINDOW, query_pre_attn_scalar=12, num_hidden_layers=3,
                                     layer_types=[SLIDING, SLIDING, FULL],
                                     rope_parameters={SLIDING: rope("default", rope_theta=1000.0),
                                                      FULL: rope("linear", factor=8.0, rope_theta=50000.0)}),
       "norms of q and k, a rotation for each kind of layer, linear scaling", config="Gemma3TextConfig"),
    lm("cohere", "Cohere", dict(GQA, logit_scale=0.25), "LayerNorm without bias, interleaved rotation, one norm, scaled logits"),
    lm("cohere-qknorm", "Cohere", dict(GQA, use_qk_norm=True, attention_bias=True), "norms of q and k of [heads, head_dim]"),
    lm("cohere2", "Cohere2", dict(GQA, **WINDOW, layer_types=[SLIDING, FULL]), "windows with rotation, full layers without"),
    lm("granite", "Granite", dict(GQA, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.7,
                                  attention_multiplier=0.2, attention_bias=True, mlp_bias=True),
       "multipliers of embedding, scores, sums and logits, biases"),
    lm("olmo", "Olmo", dict(GQA, clip_qkv=0.9), "norm without weights, q, k and v clipped"),
    lm("olmo2", "Olmo2", GQA, "norms after attention and mlp, norms of whole q and k"),
    lm("olmo3", "Olmo3", dict(GQA, **WINDOW, layer_types=[SLIDING, FULL],
                              rope_parameters={SLIDING: rope("default", rope_theta=500000.0),
                                               FULL: dict(YARN, rope_theta=500000.0)}),  # a file of version 4 can say no other
       "olmo2 with windows, yarn only where attention is full"),
    lm("nemotron", "Nemotron", dict(WIDE), "LayerNorm times 1 + w, squared relu, rotation of half the head"),
    lm("glm", "Glm", dict(WIDE), "interleaved rotation of half the head, fused gate_up_proj, biases of q, k, v"),
    lm("glm4", "Glm4", dict(WIDE), "glm with norms after attention and mlp too"),
    lm("exaone4", "Exaone4", dict(GQA, **WINDOW, num_hidden_layers=3, layer_types=[SLIDING, SLIDING, FULL]),
       "norms after, norms of q and k, no rotation where attention is full"),
    lm("exaone4-full", "Exaone4", dict(GQA, sliding_window=None, layer_types=[FULL, FULL]), "rotation everywhere"),
    lm("smollm3", "SmolLM3", dict(GQA, num_hidden_layers=3, no_rope_layers=[1, 0, 1], attention_bias=True),
       "a layer without rotation, tied head"),
    lm("phi3", "Phi3", dict(GQA, **WINDOW), "fused qkv_proj and gate_up_proj, window"),
    lm("phi3-longrope-short", "Phi3", dict(PHI3, **LONG_ROPE, max_position_embeddings=128, original_max_position_embeddings=32),
       "longrope, 32 tokens at most: short factors"),
    lm("phi3-longrope-long", "Phi3", dict(PHI3, **LONG_ROPE, max_position_embeddings=64, original_max_position_embeddings=16),
       "longrope past the original length: long factors", prompt=20),
    lm("phi4", "Phi3", dict(GQA, rope_parameters=rope("longrope", short_factor=SHORT_FACTOR[:3], long_factor=LONG_FACTOR[:3],
                                                      partial_rotary_factor=0.75),
                            max_position_embeddings=128, original_max_position_embeddings=32, tie_word_embeddings=True),
       "phi3 with GQA, rotation of 6 of 8, tied head"),
    lm("gpt_neox", "GPTNeoX", PLAIN, "q, k and v fused by heads, parallel residual of two norms, rotation of a quarter"),
    lm("gpt_neox-sequential", "GPTNeoX", dict(PLAIN, use_parallel_residual=False, rotary_pct=0.5, hidden_act="gelu_new",
                                              tie_word_embeddings=True), "attention before mlp, rotation of half, tied head"),
    lm("llama", "Llama", dict(WIDE, rope_parameters=rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                         original_max_position_embeddings=32)), "llama3 rotation, head_dim"),
    lm("llama-yarn", "Llama", dict(GQA, rope_parameters=YARN, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
       "yarn, all biases, tied head"),
    lm("llama-dynamic", "Llama", dict(GQA, max_position_embeddings=16, rope_parameters=rope("dynamic", factor=2.0)),
       "dynamic rotation past the length of the config; no greedy tokens, they would depend on the cache", prompt=0),
    lm("mistral", "Mistral", dict(WIDE, **WINDOW), "window, head_dim"),
    lm("ministral", "Ministral", dict(WIDE, **WINDOW, layer_types=[SLIDING, FULL]), "windows by layer"),
    lm("qwen2", "Qwen2", dict(GQA, **WINDOW, use_sliding_window=True, max_window_layers=1), "biases of q, k and v, window from layer 1"),
    lm("qwen3", "Qwen3", dict(WIDE, attention_bias=True), "norms of q and k, all biases, head_dim"),
    lm("gemma3n_text", "Gemma3n",
       dict(WIDE, num_hidden_layers=4, num_kv_shared_layers=2, sliding_window=7, layer_types=[SLIDING, FULL, SLIDING, FULL],
            activation_sparsity_pattern=[0.75, 0.0, 0.5, 0.0], vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=12, laurel_rank=10, altup_num_inputs=3, final_logit_softcapping=5.0,
            intermediate_size=56),
       "altup, laurel, embeddings by layer, shared kv, sparse activation", config="Gemma3nTextConfig"),
]

MIXTURES = [
    lm("mixtral", "Mixtral", dict(WIDE, **EXPERTS, intermediate_size=28), "softmax, top 2, divided by their sum"),
    lm("qwen2_moe", "Qwen2Moe", dict(MOE, num_experts=5, shared_expert_intermediate_size=40, mlp_only_layers=[0],
                                     num_hidden_layers=2), "a dense layer, a shared expert with a gate, weights not normed"),
    lm("qwen3_moe", "Qwen3Moe", dict(MOE, num_experts=5, norm_topk_prob=True, head_dim=12), "norms of q and k, weights normed"),
    lm("deepseek_v2", "DeepseekV2", dict(DEEPSEEK, q_lora_rank=None, topk_method="greedy", routed_scaling_factor=1.5),
       "MLA without low rank of q, greedy router"),
    lm("deepseek_v2-grouped", "DeepseekV2", dict(DEEPSEEK, **GROUPS, num_experts_per_tok=3, q_lora_rank=18,
                                                 topk_method="group_limited_greedy", routed_scaling_factor=1.5),
       "low rank of q, best groups first"),
    lm("deepseek_v3", "DeepseekV3", dict(DEEPSEEK, **GROUPS, q_lora_rank=18, routed_scaling_factor=1.5,
                                         rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.7)),
       "sigmoid router with correction bias and groups, yarn with mscale"),
    lm("glm4_moe", "Glm4Moe", dict(MOE, head_dim=12, n_routed_experts=6, n_shared_experts=1, n_group=3, topk_group=2,
                                   first_k_dense_replace=1, use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5),
       "the router of deepseek_v3 with GQA, rotation of half, norms of q and k"),
    lm("granitemoe", "GraniteMoe", dict(GQA, **EXPERTS, intermediate_size=28, embedding_multiplier=3.0, logits_scaling=2.0,
                                        residual_multiplier=0.7, attention_multiplier=0.2), "softmax of the top 2, multipliers"),
    lm("olmoe", "Olmoe", dict(GQA, num_experts=5, num_experts_per_tok=2, intermediate_size=28, clip_qkv=1.5),
       "norms of whole q and k, weights not normed, clip"),
    lm("gpt_oss", "GptOss", dict(WIDE, **EXPERTS, **WINDOW, intermediate_size=28, layer_types=[SLIDING, FULL],
                                 rope_parameters=dict(YARN, truncate=False, beta_fast=32.0, beta_slow=1.0)),
       "sinks, windows in turn, experts with biases and a clipped gate, yarn not truncated"),
    lm("llama4_text", "Llama4", dict(WIDE, head_dim=20, num_hidden_layers=4, num_experts_per_tok=1, num_local_experts=4,
                                     intermediate_size=28, intermediate_size_mlp=56, interleave_moe_layer_step=2,
                                     no_rope_layers=[1, 1, 0, 1], attention_chunk_size=10, floor_scale=4, attn_scale=0.2),
       "interleaved rotation, chunks, layers without rotation, temperature of positions, sigmoid router at the input",
       config="Llama4TextConfig"),
]

ENCODERS = [
    Family("bert", "BertModel", "BertConfig", ENCODER, "pooler, padding", "encoder", "float32"),
    Family("bert-classification", "BertForSequenceClassification", "BertConfig", dict(ENCODER, num_labels=3),
           "class scores of pairs (token types)", "pairs"),
    Family("bert-mlm", "BertForMaskedLM", "BertConfig", ENCODER, "head of masked words, tied", "encoder"),
    Family("bert-mlm-untied", "BertForMaskedLM", "BertConfig", dict(HEADED, tie_word_embeddings=False),
           "a matrix and a bias of the head's own", "encoder"),
    Family("roberta", "RobertaModel", "RobertaConfig", dict(ENCODER, pad_token_id=1, type_vocab_size=1),
           "positions count from 2, over tokens that are not padding", "encoder"),
    Family("roberta-classification", "RobertaForSequenceClassification", "RobertaConfig",
           dict(ENCODER, pad_token_id=1, type_vocab_size=1, num_labels=3), "head of two products on the first token", "encoder"),
    Family("xlm-roberta", "XLMRobertaModel", "XLMRobertaConfig", dict(ENCODER, pad_token_id=1, type_vocab_size=1),
           "as roberta", "encoder"),
    Family("distilbert", "DistilBertModel", "DistilBertConfig",
           dict(vocab_size=VOCABULARY, dim=48, hidden_dim=88, n_layers=2, n_heads=3, max_position_embeddings=64, pad_token_id=0),
           "no token types, no pooler", "encoder"),
    Family("distilbert-tokens", "DistilBertForTokenClassification", "DistilBertConfig",
           dict(vocab_size=61, dim=24, hidden_dim=24, n_layers=1, n_heads=3, max_position_embeddings=64, pad_token_id=0,
                num_labels=5), "class scores of each token", "encoder"),
    Family("mpnet", "MPNetModel", "MPNetConfig", dict(ENCODER, pad_token_id=1, relative_attention_num_buckets=32),
           "relative bias by buckets, positions from 2", "encoder"),
    Family("mpnet-classification", "MPNetForSequenceClassification", "MPNetConfig",
           dict(HEADED, pad_token_id=1, relative_attention_num_buckets=32, num_labels=3), "head of two products", "encoder"),
    Family("mpnet-mlm", "MPNetForMaskedLM", "MPNetConfig",
           dict(HEADED, pad_token_id=1, relative_attention_num_buckets=32), "head of masked words, tied", "encoder"),
    Family("deberta-v2", "DebertaV2Model", "DebertaV2Config",
           dict(ENCODER, relative_attention=True, position_buckets=8, max_relative_positions=-1, norm_rel_ebd="layer_norm",
                share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False),
           "disentangled attention by log buckets, shared keys (the v3 form)", "encoder"),
    Family("deberta-v2-conv", "DebertaV2Model", "DebertaV2Config",
           dict(ENCODER, relative_attention=True, position_buckets=8, max_relative_positions=-1, norm_rel_ebd="layer_norm",
                share_att_key=False, pos_att_type=["p2c", "c2p"], position_biased_input=True, type_vocab_size=2,
                conv_kernel_size=3, conv_act="gelu", embedding_size=20),
           "keys of positions of their own, a convolution after layer 0, projected embedding", "encoder"),
    Family("deberta-v2-tokens", "DebertaV2ForTokenClassification", "DebertaV2Config",
           dict(HEADED, relative_attention=True, position_buckets=8, max_relative_positions=-1, norm_rel_ebd="layer_norm",
                share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, num_labels=5),
           "class scores of each token", "encoder"),
    Family("modernbert", "ModernBertModel", "ModernBertConfig",
           dict(ENCODER, num_hidden_layers=3, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
                rope_parameters={SLIDING: rope("default", rope_theta=1000.0), FULL: rope("default", rope_theta=16000.0)}),
           "two-sided windows, two rotations, gated mlp, no norm before layer 0", "encoder"),
    Family("modernbert-mlm", "ModernBertForMaskedLM", "ModernBertConfig",
           dict(ENCODER, num_hidden_layers=2, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
                attention_bias=True, mlp_bias=True, norm_bias=True), "all biases, head of masked words", "encoder"),
    Family("modernbert-classification", "ModernBertForSequenceClassification", "ModernBertConfig",
           dict(HEADED, num_hidden_layers=2, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
                classifier_pooling="mean", classifier_bias=True, num_labels=3),
           "class scores of the mean of tokens, behind a product and a norm", "encoder"),
    Family("modernbert-tokens", "ModernBertForTokenClassification", "ModernBertConfig",
           dict(HEADED, num_hidden_layers=2, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2,
                classifier_activation="silu", num_labels=5), "class scores of each token", "encoder"),
    Family("electra-classification", "ElectraForSequenceClassification", "ElectraConfig",
           dict(HEADED, embedding_size=16, num_labels=3), "head of two products with gelu", "encoder"),
    Family("electra-mlm", "ElectraForMaskedLM", "ElectraConfig", dict(HEADED, embedding_size=16),
           "head of masked words of the embedding's size", "encoder"),
    Family("electra", "ElectraModel", "ElectraConfig", dict(ENCODER, embedding_size=20), "projected embedding", "encoder"),
    Family("vit", "ViTModel", "ViTConfig", VISION, "patches, class token, pooler", "vision"),
    Family("vit-classification", "ViTForImageClassification", "ViTConfig", dict(VISION, num_labels=7, qkv_bias=False),
           "class scores, no biases of q, k and v", "vision"),
    Family("dinov2", "Dinov2Model", "Dinov2Config", dict(VISION, mlp_ratio=2), "layer scale", "vision"),
    Family("dinov2-swiglu", "Dinov2Model", "Dinov2Config", dict(VISION, mlp_ratio=2, use_swiglu_ffn=True), "gated mlp", "vision"),
    Family("siglip-vision", "SiglipVisionModel", "SiglipVisionConfig", VISION, "the image tower alone, pooling by attention", "vision"),
    Family("siglip", "SiglipModel", "SiglipConfig", dict(text_config=dict(TEXT_TOWER, hidden_size=48, intermediate_size=88,
                                                                          projection_size=48, **IDS),
                                                         vision_config=VISION),
           "two towers, pooling by attention, sigmoid scale and bias", "towers"),
    Family("clip", "CLIPModel", "CLIPConfig", dict(text_config=dict(TEXT_TOWER, bos_token_id=1, eos_token_id=VOCABULARY - 1,
                                                                    pad_token_id=0, projection_dim=28),
                                                   vision_config=dict(VISION, projection_dim=28), projection_dim=28),
           "two towers, causal text pooled at its end token, quick gelu", "towers"),
    Family("clip-text", "CLIPTextModelWithProjection", "CLIPTextConfig",
           dict(TEXT_TOWER, bos_token_id=1, eos_token_id=2, pad_token_id=0, projection_dim=28, hidden_act="gelu"),
           "the text tower alone, pooled at the greatest id (eos_token_id 2)", "encoder"),
]

ALL = DECODERS + MIXTURES + ENCODERS
