"""Networks for text and series of numbers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .network import Network, folder_of


class Speller(nn.Module):
    """g2p_en's encoder and decoder of letters to sounds, for words of one length."""

    def __init__(self, weights: dict[str, Tensor], sounds: int) -> None:
        super().__init__()
        self.sounds = sounds
        self.letters, self.decoded = (nn.Embedding.from_pretrained(weights[f"{side}_emb"]) for side in ("enc", "dec"))
        self.encoder, self.decoder = nn.GRU(256, 256, batch_first=True), nn.GRUCell(256, 256)
        self.head = nn.Linear(256, 74)
        names = {"w_ih": "weight_ih", "w_hh": "weight_hh", "b_ih": "bias_ih", "b_hh": "bias_hh"}
        for side, module, suffix in (("enc", self.encoder, "_l0"), ("dec", self.decoder, "")):
            module.load_state_dict({f"{name}{suffix}": weights[f"{side}_{short}"] for short, name in names.items()})
        self.head.load_state_dict({"weight": weights["fc_w"], "bias": weights["fc_b"]})

    def forward(self, letters: Tensor) -> Tensor:
        """Scores [sounds, 74] for letters [1, length]."""
        hidden = self.encoder(self.letters(letters))[1][0]
        sound, scores = torch.full((1,), 2), []
        for _ in range(self.sounds):
            hidden = self.decoder(self.decoded(sound), hidden)
            scores.append(self.head(hidden))
            sound = scores[-1].argmax(-1)
        return torch.cat(scores)


PRONOUNCED = """
    harbour lantern station pattern kitchen teacher chicken history library monster pumpkin village weather
    whisper blanket cabinet dolphin elegant finance garment horizon imagine journey kingdom leather mineral
    network octopus passage quarter railway sandals traffic uniform vampire willing zealous bravery capture
    despite explain fortune gravity hundred improve justice knowing limited measure natural opinion problem
    quickly respect special through usually version western younger against because central develop evening
    freedom general himself instead justify killing largest meaning nothing outside perhaps quality related
    several thought utility various without yelling arrange balance captain darkest eastern factory genuine
    healthy impulse joyless kneeled lovable
""".split()  # noqa: SIM905


def g2p_en() -> Network:
    loaded = np.load(folder_of("g2p_en") / "checkpoint20.npz")
    weights = {name: torch.from_numpy(value) for name, value in loaded.items()}
    samples = [(torch.tensor([[3 + ord(letter) - ord("a") for letter in word] + [2]]),) for word in PRONOUNCED]

    def sounds_of(outputs: Any) -> tuple[int, ...]:
        sounds = outputs[0].argmax(-1).tolist()
        return tuple(sounds[: sounds.index(3)] if 3 in sounds else sounds)

    task = "eager's sounds of {} words"
    return Network(Speller(weights, 10), samples, sounds_of, task, calibration=16)


# Phrases, which of their characters has several pronunciations, and the one that it has here.
PHRASES = """银行里有人 1 hang2|他在路上行走 4 xing2|我的孩子长大了 4 zhang3|这条路很长 4 chang2|我们去听音乐会 5 yue4
    今天我很快乐 5 le4|我们重新开始 2 chong2|这个箱子很重 5 zhong4|我去图书馆还书 5 huan2|他还没有来 1 hai2
    他得到了奖 1 de2|你必须得去 3 dei3|北京是首都 4 du1|他们都来了 2 dou1|他在学校教书 4 jiao1
    学生在教室里 3 jiao4|我觉得很好 1 jue2|孩子在睡觉 4 jiao4|他们差不多高 2 cha4|他去上海出差 5 chai1
    这件衣服很便宜 5 pian2|坐车很方便 4 bian4|我参加了会议 1 can1|他吃了人参 4 shen1|他的分数很高 3 shu4
    请你数一数 2 shu3|大夫在医院里 0 dai4|大家都在 0 da4|他背着书包 1 bei1|门在他背后 3 bei4|房间很干净 3 gan1
    他是老干部 3 gan4|他在弹琴 2 tan2|枪里有子弹 4 dan4|他坐在中间 3 zhong1|他打中了目标 2 zhong4
    她的头发很长 3 fa4|我发现了问题 1 fa1|我们的假期很短 3 jia4|这是假的 2 jia3|农民买种子 3 zhong3
    农民在种树 3 zhong4|他是好人 2 hao3|我的爱好是画画 3 hao4|他为了孩子 1 wei4|他成为医生 2 wei2"""


class Polyphones(nn.Module):
    """g2pM: which pronunciation a character of a sentence has."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(*weights["embedding.weight"].shape)
        self.lstm = nn.LSTM(64, 32, batch_first=True, bidirectional=True)
        self.logit_layer = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 876))
        self.load_state_dict(weights)

    def forward(self, characters: Tensor, position: Tensor) -> Tensor:
        return self.logit_layer(self.lstm(self.embedding(characters))[0][0].index_select(0, position))


def g2pm() -> Network:
    folder = folder_of("g2pM")
    read = lambda name: pickle.loads((folder / f"{name}.pkl").read_bytes())  # noqa: E731, S301 - part of the package
    weights = {name: torch.from_numpy(np.array(value)) for name, value in read("np_ckpt").items()}
    characters, pronunciations = read("char2idx"), {number: name for name, number in read("class2idx").items()}
    phrases = [phrase.split() for phrase in PHRASES.replace("\n", "|").split("|")]
    samples = []
    for number, (phrase, position, _) in enumerate(phrases):
        others = (text for text, _, _ in islice(cycle(phrases), number + 1, None))
        text = "".join(islice(chain(phrase, *(f"，{other}" for other in islice(others, 4))), 14))  # noqa: RUF001
        known = [characters.get(character, 1) for character in ("시", *text, "끝")]
        samples.append((torch.tensor([known]), torch.tensor([1 + int(position)])))
    pronounced = lambda outputs: pronunciations[int(outputs[0].argmax())]  # noqa: E731
    task = "pronunciations of {} Chinese characters that have several"
    return Network(Polyphones(weights), samples, pronounced, task, [wanted for _, _, wanted in phrases])


THAI = """วันนี้|อากาศ|ดี|มาก|ฉัน|จึง|ไป|เดิน|เล่น|ที่|สวน|กับ|เพื่อน|แม่|ทำ|อาหาร|เย็น|ให้|ทุก|คน|ใน|บ้าน|กิน|พ่อ|
อ่าน|หนังสือ|ใต้|ต้นไม้|เด็ก|วิ่ง|ไป|โรงเรียน|ตอน|เช้า|ครู|สอน|ภาษา|ไทย|นักเรียน|ตั้งใจ|ฟัง|แมว|นอน|บน|
เก้าอี้|หมา|เห่า|เสียง|ดัง|รถ|ติด|มาก|ใน|เมือง|ใหญ่|เขา|ซื้อ|ผัก|และ|ผลไม้|จาก|ตลาด|น้ำ|ใน|แม่น้ำ|ไหล|เร็ว|
ฝน|ตก|หนัก|เมื่อ|คืน|นี้|เรา|ดู|หนัง|ด้วย|กัน|ที่|บ้าน|ของ|ยาย|เธอ|ชอบ|ฟัง|เพลง|และ|เต้นรำ|หมอ|ทำงาน|ที่|
โรงพยาบาล|ทุก|วัน|ชาวนา|ปลูก|ข้าว|ใน|ทุ่งนา|ทะเล|สวย|มาก|ใน|ฤดูร้อน|นก|บิน|บน|ท้องฟ้า|สีฟ้า|พี่ชาย|เล่น|
ฟุตบอล|หลัง|เลิก|เรียน|น้อง|วาด|รูป|ดอกไม้|สี|แดง|รถไฟ|มา|ถึง|สถานี|ช้า|ตำรวจ|ช่วย|คน|แก่|ข้าม|ถนน"""


class ThaiWords(nn.Module):
    """AttaCut's network of characters: where words begin."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(*weights["embeddings.weight"].shape)
        size, outputs = self.embeddings.embedding_dim, len(weights["linear1.bias"])
        filters = len(weights["conv1.conv.bias"])
        for name, width, dilation in (("conv1", 3, 1), ("conv2", 5, 3), ("conv3", 9, 2)):
            conv = nn.Conv1d(size, filters, width, padding="same", dilation=dilation)
            self.add_module(name, nn.ModuleDict({"conv": conv}))
        self.linear1, self.linear2 = nn.Linear(filters, outputs), nn.Linear(outputs, 1)
        self.load_state_dict(weights)

    def forward(self, characters: Tensor) -> Tensor:
        embedded = self.embeddings(characters).mT
        found = torch.stack([conv["conv"](embedded) for conv in (self.conv1, self.conv2, self.conv3)]).amax(0)
        return self.linear2(self.linear1(found.mT).relu()).flatten()


def attacut() -> Network:
    folder = folder_of("attacut") / "artifacts" / "attacut-c"
    known = json.loads((folder / "characters.json").read_text(encoding="utf-8"))
    weights = torch.load(folder / "model.pth", map_location="cpu", weights_only=True)
    words = "".join(THAI.split("\n")).split("|")
    text = "".join(words)
    begins = torch.tensor([sign for word in words for sign in (1.0, *[-1.0] * (len(word) - 1))])
    ids = torch.tensor([known.get(character, known["<UNK>"]) for character in text])
    starts = range(0, len(text) - 32, 8)
    samples = [(ids[None, start : start + 32],) for start in starts]
    wanted = [begins[start + 4 : start + 28] for start in starts]  # without what depends on the text around
    signs = lambda outputs: outputs[0][4:28].sign()  # noqa: E731
    task = "beginnings of Thai words in {} pieces of text, right minus wrong ones"
    return Network(ThaiWords(weights), samples, signs, task, wanted)


class Forecast(nn.Module):
    """Fracast-0 for one series, whose periods are found outside: ExecuTorch has no Fourier transform."""

    def __init__(self, core: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.core, self.head = core, head

    def forward(self, values: Tensor, observed: Tensor, periods: Tensor) -> Tensor:
        """Quantiles [1, 48, 9] of what follows values [1, 2048], which `observed` is 1 for, with periods [1, 4]."""
        from fracast._core.periodic import encoder, seasonal_fill

        encoder.significant_periods = seasonal_fill.significant_periods = lambda *_, **__: (periods, None, None)
        is_observed = observed > 0.5
        hidden = self.core(values[:, None], is_observed[:, None], observed[:, None])
        return self.head.forward_horizon(hidden, last_obs=values[:, -1:], ctx=values, ctx_mask=is_observed)


def series() -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """What came before and in the 48 steps after: temperatures of the Pacific, CO2 in the air, and sunspots."""
    folder = folder_of("statsmodels") / "datasets"
    read = lambda name: np.genfromtxt(folder / name / f"{name}.csv", delimiter=",", skip_header=1)  # noqa: E731
    carbon = read("co2")[:, 1]
    known = np.flatnonzero(np.isfinite(carbon))
    carbon = np.interp(np.arange(len(carbon)), known, carbon[known])
    pacific, sunspots = read("elnino")[:, 1:].ravel(), read("sunspots")[:, 1]
    for values, first, step in ((pacific, 300, 12), (carbon, 400, 60), (sunspots, 150, 4)):
        for now in range(first, len(values) - 48, step):
            yield values[max(0, now - 2048) : now], values[now : now + 48]


def fracast() -> Network:
    from fracast._core.periodic.official_periodogram import significant_periods
    from fracast.inference import FracastModel

    model = FracastModel.from_pretrained(weights="fp32")
    made = [*series()]
    samples, wanted = [], []
    for index in torch.randperm(len(made), generator=torch.Generator().manual_seed(0)).tolist():
        before, after = (torch.from_numpy(values.astype(np.float32)) for values in made[index])
        scaled = torch.zeros(1, 2048)
        scaled[0, -len(before) :] = (before - before.min()) / (before.max() - before.min())
        observed = torch.zeros(1, 2048)
        observed[0, -len(before) :] = 1
        filled = torch.where(observed > 0, scaled, scaled.sum() / len(before))
        periods = significant_periods(filled, max_period=1024, top_k=4)[0]
        samples.append((scaled, observed, periods))
        wanted.append(after - after.mean())
    middle = lambda outputs: outputs[0][0, :, 4] - outputs[0][0, :, 4].mean()  # noqa: E731
    task = "correlation of {} forecasts with what came"
    return Network(Forecast(model.core, model.head), samples, middle, task, wanted, calibration=16)
