"""Which models vLLM 0.32 can give to heads, and which have layers that predict further tokens.

Read from its sources: the classes of vllm/model_executor/models and vllm/models that are
`SupportsEagle3`, under the names of `registry.py`, and `SpeculativeConfig.hf_config_override`.
"""

from __future__ import annotations

EAGLE3 = frozenset(
    {
        "AfmoeForCausalLM", "ApertusForCausalLM", "Cohere2MoeForCausalLM",
        "CohereCompassForConditionalGeneration", "Cosmos3ForConditionalGeneration",
        "DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM", "DeepseekV41ForCausalLM", "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration", "Ernie4_5ForCausalLM",
        "Exaone4_5_ForConditionalGeneration", "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration",
        "Glm5NextForCausalLM", "Glm5NextForConditionalGeneration", "GlmMoeDsaForCausalLM",
        "GptOssForCausalLM", "GraniteForCausalLM", "GraniteSWAForCausalLM",
        "IQuestCoderForCausalLM", "InternLM3ForCausalLM", "InternS1ProForConditionalGeneration",
        "InternS2MobiusForConditionalGeneration", "InternS2PreviewForConditionalGeneration",
        "K2HorizonForCausalLM", "KimiK25ForConditionalGeneration",
        "KimiK3ForConditionalGeneration", "KimiLinearForCausalLM", "LLaMAForCausalLM",
        "LagunaForCausalLM", "LightOnOCRForConditionalGeneration", "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration", "LlamaForCausalLM", "LlavaForConditionalGeneration",
        "MiMoForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM",
        "MiniCPM3ForCausalLM", "MiniCPMForCausalLM", "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration", "MiniMaxM2ForCausalLM",
        "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration",
        "Ministral3ForCausalLM", "Mistral3ForConditionalGeneration", "MistralForCausalLM",
        "MistralLarge3ForCausalLM", "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration", "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM", "NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3",
        "OpenCUAForConditionalGeneration", "Phi3ForCausalLM", "PixtralForConditionalGeneration",
        "Plamo3ForCausalLM", "Qwen2ForCausalLM", "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ASRForConditionalGeneration", "Qwen3ASRRealtimeGeneration", "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "Qwen3OmniMoeForConditionalGeneration",
        "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration", "Qwen4ExpForConditionalGeneration",
        "SarvamMLAForCausalLM", "Step1ForCausalLM", "TeleChat2ForCausalLM",
        "TeleChat3ForCausalLM", "TeleFLMForCausalLM",
    }
)  # fmt: skip
"""Targets whose hidden states EAGLE-3 and DFlash heads can read."""

ONE_STAGE = frozenset(
    {
        "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM",
        "GraniteForCausalLM", "MiniMaxM2ForCausalLM", "Qwen3MoeForCausalLM", "MiMoForCausalLM",
    }
)  # fmt: skip
"""Of those, targets that do not pass them on over pipeline stages.

Their inner model leaves `supports_aux_hidden_states_over_pp` unset; there may be more of them.
"""

MTP_TYPES = frozenset(
    {
        "bailing_hybrid", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots3_note",
        "ernie4_5_moe", "exaone4_5", "exaone_moe", "glm5_next", "glm_moe_dsa", "hy_v3", "hy_v4",
        "inkling_mm_model", "inkling_model", "intern_s2_preview", "interns2_mobius", "kimi_k3",
        "longcat_flash", "minimax_m3_vl", "nemotron_h", "nemotron_h_puzzle", "pangu_ultra_moe",
        "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp",
        "qwen4_exp_text", "step3p5", "step3p7",
    }
)  # fmt: skip
"""`model_type` of targets whose own further layers vLLM drafts with, where there are any."""

MTP_ARCHITECTURES = frozenset(
    {
        "BailingMoeV2_5ForCausalLM", "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
        "GlmOcrForConditionalGeneration", "MiMoForCausalLM", "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM", "MiniMaxM3SparseForConditionalGeneration",
        "NemotronH_Omni_Reasoning_V3", "NemotronH_Super_Omni_Reasoning_V3", "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)  # fmt: skip
"""Those that are told by their architecture."""

MTP_UNSAID = frozenset({"longcat_flash", "step3p5", "step3p7", "minimax_m3_vl"})
"""`model_type` of targets that have such layers though config.json may not count them."""
