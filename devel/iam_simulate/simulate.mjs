// Asks @cloud-copilot/iam-simulate, which knows IAM's conditions and the keys of each EC2 action,
// about every question in tests/data/iam/questions.json; its answers go to standard output.
// tests/unit/cloud/test_iam.py says when and how to run it.
import { readFileSync } from 'node:fs'
import { runSimulation } from '@cloud-copilot/iam-simulate'

const [questions, ...policies] = process.argv.slice(2).map((path) => JSON.parse(readFileSync(path)))
const identityPolicies = policies.map((policy, index) => ({ name: `p${index}`, policy }))
const accountId = "123456789012"
const answers = []
for (const { action, arn, context } of questions) {
  const answer = await runSimulation(
    {
      identityPolicies,
      serviceControlPolicies: [],
      resourceControlPolicies: [],
      request: {
        action,
        principal: 'arn:aws:iam::123456789012:user/builder',
        resource: { accountId, resource: arn },
        contextVariables: context,
      },
    },
    {},
  )
  answers.push(answer.resultType === 'error' ? `error: ${JSON.stringify(answer.errors)}` : answer.overallResult)
}
console.log(JSON.stringify(answers))
