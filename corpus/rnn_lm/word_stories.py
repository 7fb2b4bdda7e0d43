"""Made-up stories: sentences of a small grammar whose nouns, verbs and places go together by story."""

import os
import random

ONSETS = ['b', 'br', 'd', 'f', 'g', 'gl', 'k', 'l', 'm', 'n', 'p', 'pr', 's', 'st', 't', 'v']
RHYMES = ['ack', 'ade', 'all', 'ane', 'eam', 'ell', 'ern', 'ide', 'ill', 'oat', 'old', 'ore', 'ound', 'ump']


def make_words(rng, count):
    return rng.sample([onset + rhyme for onset in ONSETS for rhyme in RHYMES], count)


def write_story(path, rng, words, n_sentences):
    nouns, verbs, places = words[:100], words[100:160], words[160:]
    theme = rng.randrange(10)
    with open(path, 'w', encoding='utf-8') as f:
        for _ in range(n_sentences):
            noun = rng.choice(nouns[theme * 10:theme * 10 + 10])
            verb = verbs[(nouns.index(noun) + rng.randrange(2)) % len(verbs)]
            place = rng.choice(places[theme * 4:theme * 4 + 4])
            f.write(f'the {noun} {verb}s in the {place}\n')
            if rng.random() < 0.1:
                theme = rng.randrange(10)


def prepare_stories(root, n_stories, n_sentences):
    """Write the stories, one file each, unless they are there already."""
    folder = os.path.join(root, f'stories_{n_stories}_{n_sentences}')
    done = os.path.join(folder, 'DONE')
    if os.path.exists(done):
        return folder
    os.makedirs(folder, exist_ok=True)
    words = make_words(random.Random(0), 200)
    for i in range(n_stories):
        write_story(os.path.join(folder, f'{i:04d}.txt'), random.Random(i + 1), words, n_sentences)
    open(done, 'w').close()
    return folder
