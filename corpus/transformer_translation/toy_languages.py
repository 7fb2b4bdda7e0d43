"""An artificial pair of languages: every word has one translation and the target language reads backwards."""

import os
import random

STEMS = [a + b for a in 'bdfgklmnprst' for b in 'aeiou']


def random_word(rng: random.Random) -> str:
    return ''.join(rng.choices(STEMS, k=rng.randint(1, 3)))


def prepare_corpus(root: str, split: str, size: int, seed: int) -> str:
    """Write `size` sentence pairs, one file per sentence and language, unless they are there already."""
    folder = os.path.join(root, f'{split}_{size}')
    done = os.path.join(folder, 'DONE')
    if os.path.exists(done):
        return folder
    for lang in ('src', 'tgt'):
        os.makedirs(os.path.join(folder, lang), exist_ok=True)
    words = random.Random(0)  # both splits speak the same languages
    lexicon = {random_word(words): random_word(words) for _ in range(300)}
    frequency = [1 / rank for rank in range(1, len(lexicon) + 1)]
    rng = random.Random(seed)
    for i in range(size):
        src = rng.choices(list(lexicon), frequency, k=rng.randint(6, 18))
        tgt = [lexicon[word] for word in reversed(src)]
        for lang, sentence in (('src', src), ('tgt', tgt)):
            with open(os.path.join(folder, lang, f'{i:06d}.txt'), 'w', encoding='utf-8') as f:
                f.write(', '.join(sentence).capitalize() + '.\n')
    open(done, 'w').close()
    return folder
