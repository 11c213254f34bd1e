# Made by tools/export.py from notebooks/14_faults/14_9_symptoms.py. Do not edit: change it there, then `make export`.
# Body: 17a1d29f0c11e383
"""14.9.5 Go from a symptom to its mechanism."""


# 14_faults/14_9_symptoms, cell 1
def symptom_rows(text):
    """Lines `symptom | mechanism | section` as a tuple of dicts."""
    lines = (line.split('|') for line in text.strip().splitlines())
    return tuple({'symptom': a.strip(), 'mechanism': b.strip(), 'section': c.strip()} for a, b, c in lines)


CURVES = symptom_rows("""
    reward rises, pass rate falls | the reward can be had without the task: a shortcut | 9.4
    reward rises, pass rate falls | the reward pays for something else than was wanted | 4.2
    KL explodes after a long calm | a lower clip revives collapsed ratios | 14.6
    KL explodes after a long calm | the same clip, measured in training, and its remedies | 13.1
    ratios far from 1 before any update | ids or contexts are not those that were sampled | 14.3
    ratios far from 1 before any update | tokens encoded again from text | 5.4
    ratios far from 1 before any update | scored at another temperature | 8.4
    a rare step with a huge gradient | rounding divided by rounding in a group | 14.5
    healthy loss, nothing is learned | the mask is inverted or shifted | 14.1
    most groups teach nothing | all pass or all fail | 9.1
    the gradient shrinks when many episodes are cut | the denominator counts dropped tokens | 14.7
    long episodes hardly train, or all are capped | a sum of log-ratios taken for a mean | 14.6
    values too low near a time limit | timeouts taken for terminations | 14.4
""")


# 14_faults/14_9_symptoms, cell 2
BEHAVIOUR = symptom_rows("""
    the agent starts to write observations | the mask lets the environment in | 12.1
    the agent does not end its calls | the end of a call is left out of the mask | 6.1
    the first calls learn slowly, the more the tools say | GAE decays across observations | 14.2
    only the last call is learned | returns start anew at observations | 14.2
    episodes that end with an observation teach nothing | the reward is where the mask is not | 14.2
    credit is noisy or late | token, call or episode: three kinds of credit | 12.2
    mediocre episodes are reinforced on bad days | errors counted as reward 0 | 14.5
    the size of a penalty makes no difference | the group deviation divides it out | 9.6
    the agent gives up early | calls cost more than they bring | 12.3
    malformed calls stay | they have no price | 12.5
    malformed calls rise with the length of answers | cut calls scored as malformed | 14.4
    calls that nobody would make | cut calls executed | 14.4
    long episodes take over | an episode votes as often as it has samples | 14.7
    one kind of task takes over | tokens, not episodes, decide the share of the loss | 12.6
    some calls of an episode are over-trained | a shared prefix is trained on every branch | 14.3
""")


# 14_faults/14_9_symptoms, cell 3
OPERATIONS = symptom_rows("""
    another micro-batch size, another result | means of pieces, not of the batch | 14.7
    another micro-batch size, another result | weights before the split: the cure | 6.2
    results depend on the length of other rows | padding in the loss | 14.1
    the same seed gives another run | rows share a generator, or depend on their neighbours | 14.8
    the same seed gives another run | a sampler whose rows own their uniforms | 5.3
    the same seed gives another run | rewards timed by the clock, on a busy machine | 4.1
    rollouts are missing | malformed arguments raise | 14.8
    whole groups vanish under load | a quota message taken as fatal | 14.8
    whole groups vanish under load | quotas, back-off and the survival of groups | 13.6
    decoding is busy, samples are few | retries that leave zombies behind | 13.3
    slow tasks disappear from training | staleness limits favour fast ones | 13.7
""")
SYMPTOMS = CURVES + BEHAVIOUR + OPERATIONS


# 14_faults/14_9_symptoms, cell 5
def symptom_table(links, rows=SYMPTOMS):
    """The list as a Markdown table, a row a symptom; links: {'14.9': a Markdown link} for each section."""
    causes = {}
    for row in rows:
        causes.setdefault(row['symptom'], []).append(f'{row["mechanism"]} ({links[row["section"]]})')
    head = ['| symptom | what may be behind it |', '|---|---|']
    return '\n'.join(head + [f'| {symptom} | {"; ".join(found)} |' for symptom, found in causes.items()])
